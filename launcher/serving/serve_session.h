// One launch from start to end: the controller in this process, the ranks as a supervised job, the
// interrupts.
//
// Run occupies main's thread, which sleeps until something happens. A restart of lost ranks is
// BeginEpoch on the controller and a new JobSupervisor: both are members that can be replaced while
// the rest stays.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "launcher/base/mailbox.h"
#include "launcher/base/signals.h"
#include "launcher/job/job_supervisor.h"
#include "launcher/serving/serve_report.h"
#include "runtime/controller/controller.h"

namespace lockstep {

struct SessionOptions {
  ControllerOptions controller;  // without observer
  std::string listen_host;       // for the ready line
  absl::Duration drain_timeout;
  // The job of an epoch whose ranks dial worker_address. Null: ranks are placed by hand.
  std::function<absl::StatusOr<JobSpec>(uint64_t epoch, const std::string& worker_address)>
      make_job;
  std::string secret_file;  // shown when ranks are placed by hand
};

class ServeSession {
 public:
  ServeSession(SessionOptions options, ServeReport& report, InterruptWatcher& interrupts);

  // OK after an orderly stop. Else the reason, which names the rank when one was lost.
  absl::Status Run();

 private:
  enum class State { kStarting, kServing, kDraining, kStopping };

  absl::Status Start();
  absl::Status StartJob(uint64_t epoch);
  void Step();
  void HandleInterrupts();
  void HandleEvents();
  void Handle(const ControllerEvent& event);
  void HandleJobOutput();
  void HandleLine(absl::string_view line);
  absl::Status End();
  std::string ReasonWithDetail() const;

  SessionOptions options_;
  ServeReport& report_;
  InterruptWatcher& interrupts_;
  // Destroyed in reverse: the job's processes end before the controller they talk to, whose
  // observer uses the mailbox.
  Mailbox<ControllerEvent> mailbox_;
  std::unique_ptr<Controller> controller_;
  std::unique_ptr<JobSupervisor> job_;

  State state_ = State::kStarting;
  absl::Time drain_deadline_ = absl::InfiniteFuture();
  std::string how_stopped_;
  bool has_served_ = false;
  std::optional<std::string> failure_;
  std::string rank_error_;   // a rank's own last words
  std::string kill_reason_;  // mpirun's, when a rank was killed
};

}  // namespace lockstep
