// A process that does not go away when it is killed.
#pragma once

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::testing {

// Keeps a process from being gone, as a driver that hangs does: whose tracer does not take the news
// of its end stays, whatever kills it.
class KeptProcess {
 public:
  explicit KeptProcess(pid_t pid) {
    int ends[2];
    if (::pipe(ends) != 0) return;
    tracer_ = ::fork();
    if (tracer_ == 0) {
      const char is_seized = ::ptrace(PTRACE_SEIZE, pid, 0, 0) == 0 ? 1 : 0;
      if (::write(ends[1], &is_seized, 1) == 1) ::pause();
      _exit(0);
    }
    char is_seized = 0;
    is_kept_ = ::read(ends[0], &is_seized, 1) == 1 && is_seized == 1;
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ~KeptProcess() {
    ::kill(tracer_, SIGKILL);
    ::waitpid(tracer_, nullptr, 0);
  }
  KeptProcess(const KeptProcess&) = delete;
  KeptProcess& operator=(const KeptProcess&) = delete;
  bool is_kept() const { return is_kept_; }

 private:
  pid_t tracer_ = -1;
  bool is_kept_ = false;
};

}  // namespace lockstep::testing
