// One job of ranks as a child process (mpirun), from start to the last process gone.
//
// Used by main's thread only: the job is told to end when the thread that started it does. The job
// gets a session of its own, so a terminal's Ctrl-C reaches the launcher alone; processes that
// outlive mpirun are adopted by the launcher and killed, known by their session or by a mark in
// their environment. Processes that do not even die of SIGKILL (they hang in a driver) are named
// and left: nothing here waits for them. A restart is a new JobSupervisor with the next epoch.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/base/fd.h"

namespace lockstep {

struct JobSpec {
  std::vector<std::string> command;      // [0]: path of the program
  std::vector<std::string> environment;  // "NAME=value", all of it
  // What the job reads on its standard input, where neither ps nor /proc shows it; at most 4096
  // bytes.
  std::string input = {};
  // Without the host's network, where the system allows that (see private_network.h).
  bool private_network = false;
  // What the job gets when the launcher is gone, killed say: SIGTERM for who ends what it started.
  int signal_without_launcher = SIGTERM;
  // How long Wait and Terminate wait for killed processes to be gone.
  absl::Duration kill_patience = absl::Seconds(10);
};

struct JobExit {
  int code = 0;    // when signal is 0
  int signal = 0;  // that ended it
  // What JobSpec::kill_patience after SIGKILL is still there: it waits for a driver (which may have
  // a GPU's memory to give back) or for storage, and keeps its GPU.
  std::vector<pid_t> survivors = {};
  std::string ToString() const;
  std::string Undying() const;  // the survivors, in words; empty: there are none
};

class JobSupervisor {
 public:
  using OnLine = std::function<void(absl::string_view line)>;

  // on_line gets every line the job prints, from ReadOutput. UNAVAILABLE when the program cannot be
  // run.
  static absl::StatusOr<std::unique_ptr<JobSupervisor>> Start(const JobSpec& spec, OnLine on_line);
  ~JobSupervisor();  // Terminate without grace
  JobSupervisor(const JobSupervisor&) = delete;
  JobSupervisor& operator=(const JobSupervisor&) = delete;

  // Readable when there is output, and once the job has ended (without pidfds: with its output).
  int fd() const { return events_.get(); }
  // Gives on_line what the job has printed. True when all of that has been read: the job has ended,
  // though what it left behind may still hold its output, or nobody holds that any more.
  bool ReadOutput();

  // Set once the job and everything it left behind are gone, or do not die.
  const std::optional<JobExit>& exit() const { return exit_; }
  // Waits for the end of the job; true when it came in time. What a job that ended left behind is
  // waited for, too, if that takes longer.
  bool Wait(absl::Time deadline);
  // Asks the job to end, waits for `grace`, then kills what is left. Returns when nothing is left
  // but what does not die.
  JobExit Terminate(absl::Duration grace);
  // After the exit: whether its survivors are gone by now. Does not wait.
  bool SurvivorsAreGone();

  pid_t pid() const { return pid_; }

 private:
  struct Traits {
    std::string mark;  // in the environment of every process of the job
    absl::Duration kill_patience;
  };

  JobSupervisor(pid_t pid, const Traits& traits, Fd output, OnLine on_line);
  bool HasEnded() const;
  bool TryReap();
  bool KillAdopted();  // true: there is none
  void FlushLine();

  pid_t pid_;
  const Traits traits_;
  Fd output_;
  Fd end_;     // a pidfd, readable once the job has ended; invalid where the kernel has none
  Fd events_;  // epoll over both
  OnLine on_line_;
  std::string partial_line_;
  std::optional<int> status_;                      // of pid_, once it is reaped
  absl::Time killed_by_ = absl::InfiniteFuture();  // what is there then does not die
  std::vector<pid_t> left_;                        // behind by the job, and not reaped yet
  std::optional<JobExit> exit_;
};

}  // namespace lockstep
