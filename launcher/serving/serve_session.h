// One launch from start to end: the controller in this process, each replica's ranks as a
// supervised job, the interrupts.
//
// Run occupies main's thread, which sleeps until something happens. A lost rank is a lost job: what
// is left of it is killed, the controller begins the replica's next epoch, and a new job starts. A
// replica that is lost too often, in a short time or without serving in between, is given up, and
// with the last one the launch.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "launcher/base/mailbox.h"
#include "launcher/base/signals.h"
#include "launcher/job/job_output.h"
#include "launcher/job/job_supervisor.h"
#include "launcher/job/restart_policy.h"
#include "launcher/serving/gateway_process.h"
#include "launcher/serving/last_words.h"
#include "launcher/serving/metrics_server.h"
#include "launcher/serving/rank_roll.h"
#include "launcher/serving/serve_report.h"
#include "runtime/controller/controller.h"

namespace lockstep {

struct SessionOptions {
  ControllerOptions controller;  // without observer
  std::string listen_host;       // for the ready line
  absl::Duration drain_timeout;
  RestartLimits restarts;
  // For killed processes of a lost job to be gone; then its replica is given up.
  absl::Duration kill_timeout = absl::Seconds(60);
  // The job of a replica's epoch, whose ranks dial worker_address. Null: ranks are placed by hand.
  std::function<absl::StatusOr<JobSpec>(int replica, uint64_t epoch,
                                        const std::string& worker_address)>
      make_job;
  std::vector<std::vector<std::string>> hosts_of_ranks;  // by replica and rank
  // From a job's start until all of its ranks have joined and checked their links.
  absl::Duration preflight_limit = absl::Seconds(30);
  std::optional<HttpServerOptions> metrics;  // MetricsListener's
  std::optional<GatewayLaunch> gateway;      // PlanGateway's
  std::string secret_file;                   // shown when ranks are placed by hand
};

class ServeSession {
 public:
  ServeSession(SessionOptions options, ServeReport& report, InterruptWatcher& interrupts);

  // OK after an orderly stop. Else the reason, which names the rank when one was lost.
  absl::Status Run();

 private:
  enum class State { kStarting, kServing, kDraining, kStopping };

  struct News {
    ControllerEvent event;
    std::string process_state;  // of a rank on this host that fell silent
  };

  // A lost job of which something does not die.
  struct Undead {
    std::unique_ptr<JobSupervisor> process;
    std::string reason;  // of the loss
    absl::Time given_up_at;
  };

  // One replica's job and what was heard of it since its start.
  struct Job {
    explicit Job(const RestartLimits& limits) : restarts(limits) {}

    int replica = 0;
    uint64_t epoch = 0;
    std::unique_ptr<JobSupervisor> process;  // null between a loss and the next start
    absl::Time start_at = absl::InfiniteFuture();
    RestartPolicy restarts;  // its own: one replica's crash loop is not the others'
    bool given_up = false;
    std::optional<Undead> undead;  // its predecessor, for which the next start waits
    JobOutput output;
    RankRoll roll;
    absl::Time preflight_deadline = absl::InfiniteFuture();
    bool has_served = false;
    std::string starter;  // mpirun or srun
    LastWords words;
  };

  absl::Status Start();
  absl::Status StartJob(Job& job);
  void Step();
  absl::Time NextDeadline() const;
  void HandleInterrupts();
  void HandleEvents();
  static News Look(const ControllerEvent& event);
  void Handle(const News& news);
  void HandleServing(const ControllerEvent& event);
  void HandleLoss(const News& news);
  void HandleOutputs();
  void StepGateway();
  void CheckPreflights();
  void StartDueJobs();
  void HandleLine(Job& job, absl::string_view line);
  void HandleJobLine(Job& job, const JobLine& parsed);
  bool IsOfJob(const ControllerEvent& event) const;
  void LoseJob(Job& job, std::string reason, bool may_restart);
  absl::Duration UsualDeath() const;
  void CheckUndead();
  void Restart(Job& job, std::string reason);
  void GiveUpReplica(Job& job, std::string reason);
  void GiveUp(std::string reason);
  absl::Status End();
  void EndJob(Job& job, absl::Time own_end);
  std::string WithReplica(std::string reason, const Job& job) const;

  SessionOptions options_;
  ServeReport& report_;
  InterruptWatcher& interrupts_;
  // Destroyed in reverse: the jobs' processes end before the controller they talk to, whose
  // observer uses the mailbox.
  Mailbox<News> mailbox_;
  std::unique_ptr<Controller> controller_;
  std::unique_ptr<MetricsServer> metrics_;   // null: not wanted
  std::unique_ptr<GatewayProcess> gateway_;  // likewise
  std::vector<Job> jobs_;                    // [num_replicas]; empty when ranks are placed by hand

  State state_ = State::kStarting;
  absl::Time drain_deadline_ = absl::InfiniteFuture();
  std::string how_stopped_;
  std::optional<ControllerEvent> drained_;
  bool has_served_ = false;
  std::optional<std::string> failure_;
};

}  // namespace lockstep
