// One job of ranks as a child process (mpirun), from start to the last process gone.
//
// Used by main's thread only: the job is told to end when the thread that started it does. The job
// gets a session of its own, so a terminal's Ctrl-C reaches the launcher alone; processes that
// outlive mpirun are adopted by the launcher and killed, known by their session or by a mark in
// their environment. A restart is a new JobSupervisor with the next epoch.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "launcher/base/fd.h"

namespace lockstep {

struct JobSpec {
  std::vector<std::string> command;      // [0]: path of the program
  std::vector<std::string> environment;  // "NAME=value", all of it
  // What the job reads on its standard input, where neither ps nor /proc shows it; at most 4096
  // bytes.
  std::string input = {};
  // Without the host's network, where the system allows that (see private_network.h).
  bool private_network = false;
};

struct JobExit {
  int code = 0;    // when signal is 0
  int signal = 0;  // that ended it
  std::string ToString() const;
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

  // Readable when there is output, or when the job's last process closed it.
  int output_fd() const { return output_.get(); }
  void ReadOutput();

  // Set once the job and everything it left behind are gone.
  const std::optional<JobExit>& exit() const { return exit_; }
  // Waits for the end of the job; true when it came in time.
  bool Wait(absl::Time deadline);
  // Asks the job to end, waits for `grace`, then kills what is left. Returns when nothing is left.
  JobExit Terminate(absl::Duration grace);

  pid_t pid() const { return pid_; }

 private:
  JobSupervisor(pid_t pid, std::string mark, Fd output, OnLine on_line);
  bool TryReap();
  void FlushLine();

  pid_t pid_;
  std::string mark_;  // in the environment of every process of the job
  Fd output_;
  OnLine on_line_;
  std::string partial_line_;
  std::optional<JobExit> exit_;
};

}  // namespace lockstep
