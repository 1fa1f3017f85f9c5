// Child processes for end-to-end tests: started, fed signals, their output collected, their
// descendants counted.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"

namespace lockstep::testing {

// A running program with standard input from /dev/null. Descendants inherit a mark in their
// environment, by which they are found wherever they went. Killed, with all descendants, when the
// object goes.
class Process {
 public:
  explicit Process(const std::vector<std::string>& command,
                   const std::map<std::string, std::string>& environment = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // The exit code, 128 + n after signal n, nullopt when the time is over.
  std::optional<int> Wait(absl::Duration timeout);
  // What was printed so far; all of it after Wait.
  std::string out();
  std::string err();
  // Until standard output satisfies the condition. False when the time is over or the program ended
  // without.
  bool WaitForOutput(const std::function<bool(const std::string&)>& condition,
                     absl::Duration timeout);

  // Processes with this one's mark, itself included while it lives.
  std::vector<pid_t> Marked() const;
  // Until none is left.
  bool WaitUntilNoneMarked(absl::Duration timeout) const;

 private:
  void Collect(int fd, std::string& into);

  std::string mark_;
  pid_t pid_ = -1;
  std::optional<int> exit_code_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string out_;
  std::string err_;
  int open_streams_ = 2;
  std::thread out_reader_;
  std::thread err_reader_;
};

// User and system time of a process so far, in seconds; 0 when it is gone.
double CpuSeconds(pid_t pid);

}  // namespace lockstep::testing
