// A server of one's own for as long as a command runs: `lockstep serve` as a child process on a
// port of loopback that the system chooses. Used by one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/base/signals.h"
#include "launcher/job/job_supervisor.h"

namespace lockstep {

class LocalServer {
 public:
  // Starts `lockstep serve ARGUMENTS --json --listen 127.0.0.1:0` and returns when it serves.
  // UNAVAILABLE with the server's own last words; CANCELLED after an interrupt.
  static absl::StatusOr<std::unique_ptr<LocalServer>> Start(
      const std::vector<std::string>& arguments, InterruptWatcher& interrupts);
  ~LocalServer();  // ends it, in order
  LocalServer(const LocalServer&) = delete;
  LocalServer& operator=(const LocalServer&) = delete;

  const std::string& address() const { return address_; }

 private:
  LocalServer() = default;
  void HandleLine(absl::string_view line);

  std::string address_;                     // empty until it serves
  std::string last_words_;                  // its last line that is no event
  std::unique_ptr<JobSupervisor> process_;  // last: its output goes to HandleLine
};

}  // namespace lockstep
