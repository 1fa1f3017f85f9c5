#include "launcher/serving/serve_session.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_clock.h"
#include "launcher/base/host_name.h"
#include "launcher/cli/values.h"
#include "launcher/job/process_state.h"

namespace lockstep {
namespace {

// The controller's event names the rank and its operation, mpirun's words the signal; they come
// apart.
constexpr absl::Duration kLastWordsTimeout = absl::Seconds(3);
// A job that lost a rank mostly ends by itself; one with a stopped rank never does.
constexpr absl::Duration kOwnEndTimeout = absl::Seconds(2);
constexpr absl::Duration kOrderlyExitTimeout = absl::Seconds(3);
constexpr absl::Duration kTerminateGrace = absl::Seconds(2);
constexpr absl::Duration kUndeadInterval = absl::Milliseconds(200);  // of looks at who does not die
constexpr char kJobEnded[] = "the job of ranks ended unexpectedly";

}  // namespace

ServeSession::ServeSession(SessionOptions options, ServeReport& report,
                           InterruptWatcher& interrupts)
    : options_(std::move(options)), report_(report), interrupts_(interrupts) {}

absl::Status ServeSession::Run() {
  RETURN_IF_ERROR(Start());
  while (state_ != State::kStopping) Step();
  return End();
}

absl::Status ServeSession::Start() {
  options_.controller.observer = [this](const ControllerEvent& event) {
    mailbox_.Put(Look(event));
  };
  // The supervisor decides how long a replica may be away.
  if (options_.make_job != nullptr) options_.controller.recovery_window = absl::InfiniteDuration();
  ASSIGN_OR_RETURN(controller_, Controller::Start(options_.controller));
  if (options_.metrics) {
    ASSIGN_OR_RETURN(metrics_, MetricsServer::Start(*options_.metrics,
                                                    options_.controller.api_tokens, *controller_));
    report_.Metrics(metrics_->url());
  }
  if (options_.gateway) {
    ASSIGN_OR_RETURN(gateway_, GatewayProcess::Start(*options_.gateway, report_));
  }
  if (options_.make_job == nullptr) {
    report_.WaitingForRanks(controller_->worker_addresses().front(), options_.secret_file);
    return absl::OkStatus();
  }
  for (int i = 0; i < options_.controller.num_replicas; ++i) jobs_.emplace_back(options_.restarts);
  for (size_t i = 0; i < jobs_.size(); ++i) {
    jobs_[i].replica = static_cast<int>(i);
    jobs_[i].epoch = options_.controller.epoch;
    RETURN_IF_ERROR(StartJob(jobs_[i]));
  }
  return absl::OkStatus();
}

absl::Status ServeSession::StartJob(Job& job) {
  job.start_at = absl::InfiniteFuture();
  job.has_served = false;
  job.words = LastWords();
  job.output = JobOutput();
  job.roll = RankRoll(options_.hosts_of_ranks[job.replica]);
  job.preflight_deadline = SteadyNow() + options_.preflight_limit;
  ASSIGN_OR_RETURN(JobSpec spec, options_.make_job(job.replica, job.epoch,
                                                   controller_->worker_addresses().front()));
  spec.kill_patience = UsualDeath();
  job.starter = spec.command.front();
  ASSIGN_OR_RETURN(job.process, JobSupervisor::Start(spec, [this, &job](absl::string_view line) {
                     HandleLine(job, line);
                   }));
  return absl::OkStatus();
}

void ServeSession::Step() {
  std::vector<int> fds = {mailbox_.fd(), interrupts_.fd()};
  if (gateway_) fds.push_back(gateway_->fd());
  for (const Job& job : jobs_) {
    if (job.process) fds.push_back(job.process->fd());
  }
  WaitReadable(fds, NextDeadline() - SteadyNow());
  HandleInterrupts();
  HandleEvents();
  HandleOutputs();
  StepGateway();
  CheckPreflights();
  CheckUndead();
  if (state_ != State::kStopping) StartDueJobs();
  if (state_ == State::kDraining && SteadyNow() >= drain_deadline_) {
    how_stopped_ = "with requests unfinished: the time to drain is over";
    state_ = State::kStopping;
  }
}

absl::Time ServeSession::NextDeadline() const {
  absl::Time deadline = drain_deadline_;
  if (gateway_) deadline = std::min(deadline, gateway_->next_start());
  for (const Job& job : jobs_) {
    deadline = std::min(deadline, job.start_at);
    if (job.undead) deadline = std::min(deadline, SteadyNow() + kUndeadInterval);
    if (job.process && !job.roll.IsComplete()) {
      deadline = std::min(deadline, job.preflight_deadline);
    }
  }
  return deadline;
}

void ServeSession::HandleInterrupts() {
  const int count = interrupts_.TakeCount();
  if (count == 0) return;
  if (!has_served_ || state_ == State::kDraining || count > 1) {
    how_stopped_ = has_served_ ? "at once" : kBeforeServing;
    state_ = State::kStopping;
    return;
  }
  state_ = State::kDraining;
  drain_deadline_ = SteadyNow() + options_.drain_timeout;
  report_.Draining(absl::ToDoubleSeconds(options_.drain_timeout));
  controller_->BeginDrain();
}

void ServeSession::HandleEvents() {
  for (const News& news : mailbox_.TakeAll()) {
    if (state_ != State::kStopping) Handle(news);
  }
}

// On the controller's thread, before it closes the streams of the others, whose job then ends.
ServeSession::News ServeSession::Look(const ControllerEvent& event) {
  const bool may_be_seen = event.kind == ControllerEvent::Kind::kRankLost &&
                           event.cause == ControllerEvent::Cause::kRankVanished &&
                           event.host == HostName();
  return {event, may_be_seen ? DescribeProcess(static_cast<pid_t>(event.pid)) : ""};
}

void ServeSession::Handle(const News& news) {
  using Kind = ControllerEvent::Kind;
  const ControllerEvent& event = news.event;
  switch (event.kind) {
    case Kind::kRankJoined:
      if (IsOfJob(event)) jobs_[event.replica].roll.Joined(event.rank);
      return report_.RankJoined(event);
    case Kind::kRankChecked:
      if (IsOfJob(event)) jobs_[event.replica].roll.Checked(event.rank);
      return report_.RankChecked(event);
    case Kind::kRankLoading:
      return report_.RankLoading(event);
    case Kind::kRankLoaded:
      return report_.RankLoaded(event);
    case Kind::kRankRehearsed:
      return report_.RankRehearsed(event);
    case Kind::kServing:
      return HandleServing(event);
    case Kind::kRankLost:
      return HandleLoss(news);
    case Kind::kFailed:
      // Ranks placed by hand may come again; a job's end is decided here.
      return jobs_.empty() ? report_.Waiting(event.message) : GiveUp(event.message);
    case Kind::kWarning:
      return report_.Warn({event.message});
    case Kind::kDrained:
      drained_ = event;
      if (state_ != State::kDraining) return;
      how_stopped_ = "after all requests finished";
      state_ = State::kStopping;
      return;
  }
}

bool ServeSession::IsOfJob(const ControllerEvent& event) const {
  if (jobs_.empty()) return false;  // ranks are placed by hand
  const Job& job = jobs_[event.replica];
  return event.epoch == job.epoch && job.process != nullptr;
}

void ServeSession::HandleServing(const ControllerEvent& event) {
  if (state_ == State::kStarting) state_ = State::kServing;
  has_served_ = true;
  if (!jobs_.empty()) jobs_[event.replica].has_served = true;
  report_.Serving(event, HostPort{options_.listen_host, controller_->client_port()}.ToString());
}

void ServeSession::HandleLoss(const News& news) {
  const ControllerEvent& event = news.event;
  report_.RankLost(event, /*is_final=*/jobs_.empty());
  // Events of an epoch that ended here first (its output closed) tell nothing new.
  if (!IsOfJob(event)) return;
  Job& job = jobs_[event.replica];
  // What ranks say against a first start (a model that does not fit, a wrong flag) they will say
  // again.
  const bool may_restart = has_served_ || event.cause != ControllerEvent::Cause::kRankComplained;
  job.words.ranks = event.ranks;
  job.words.lost_host = event.host;
  job.words.lost_pid = event.pid;
  job.words.process_state = news.process_state;
  LoseJob(job, event.message, may_restart);
}

void ServeSession::HandleOutputs() {
  for (Job& job : jobs_) {
    if (!job.process) continue;
    if (!job.process->ReadOutput() || state_ == State::kStopping) continue;
    // mpirun is gone: the controller will have noticed too and knows more.
    WaitReadable({mailbox_.fd()}, kOwnEndTimeout);
    HandleEvents();
    if (!job.process || state_ == State::kStopping) continue;
    job.process->Wait(SteadyNow() + kLastWordsTimeout);
    for (const JobLine& left : job.output.Finish()) HandleJobLine(job, left);
    const std::string& start_failure = job.output.start_failure();
    const bool may_restart = has_served_ || job.words.killed.has_value() ||
                             (job.words.rank_error.empty() && start_failure.empty());
    std::string reason = kJobEnded;
    if (!start_failure.empty()) {
      reason = start_failure;
    } else if (job.process->exit() && job.words.rank_error.empty() && !job.words.killed) {
      absl::StrAppend(&reason, " (", job.process->exit()->ToString(), ")");
    }
    LoseJob(job, std::move(reason), may_restart);
  }
}

void ServeSession::StepGateway() {
  if (!gateway_ || state_ == State::kStopping) return;
  const absl::Status status = gateway_->Step();
  if (!status.ok()) GiveUp(std::string(status.message()));
}

void ServeSession::HandleLine(Job& job, absl::string_view line) {
  for (const JobLine& left : job.output.Take(line)) HandleJobLine(job, left);
}

void ServeSession::HandleJobLine(Job& job, const JobLine& parsed) {
  if (parsed.rank) {
    if (const auto started = ParseRankStarted(parsed.text)) {
      return job.roll.Started(*parsed.rank, *started);
    }
    if (parsed.text == kRankMetMark) return job.roll.Met(*parsed.rank);
  }
  if (job.words.Hear(parsed)) return;
  report_.RankOutput(job.replica, parsed.rank.value_or(-1), parsed.text,
                     std::filesystem::path(job.starter).stem().string());
}

// As the controller begins its own messages.
std::string ServeSession::WithReplica(std::string reason, const Job& job) const {
  const std::string name = absl::StrCat("replica ", job.replica, ", ");
  if (jobs_.size() == 1 || absl::StartsWith(reason, name)) return reason;
  return absl::StrCat(name, reason);
}

// A killed process that takes longer is told of.
absl::Duration ServeSession::UsualDeath() const { return options_.kill_timeout / 6; }

// What is left of the job is killed. The next one starts once nothing is left.
void ServeSession::LoseJob(Job& job, std::string reason, bool may_restart) {
  if (job.process->Wait(SteadyNow() + kOwnEndTimeout)) {
    const auto how = SignalInExitCode(job.starter, job.process->exit()->code);
    if (how && !job.words.killed && !absl::StrContains(job.words.StateOfLost(), *how)) {
      absl::StrAppend(&reason, " (mpirun: a rank was ", *how, ")");
    }
  } else {
    job.process->Terminate(kTerminateGrace);
  }
  reason = WithReplica(job.words.Explain(reason), job);
  std::unique_ptr<JobSupervisor> process = std::move(job.process);
  const std::string survivors = process->exit()->Undying();
  if (!may_restart) {
    if (!survivors.empty()) absl::StrAppend(&reason, "; left behind: ", survivors);
    return GiveUp(std::move(reason));
  }
  if (survivors.empty()) return Restart(job, std::move(reason));
  const absl::Duration patience = options_.kill_timeout - UsualDeath();
  report_.Warn({WithReplica(absl::StrCat(survivors, "; the next start waits for that, at most ",
                                         absl::FormatDuration(patience)),
                            job)});
  job.undead = {std::move(process), std::move(reason), SteadyNow() + patience};
}

// Another start would find the GPUs taken, or hang as the last one does.
void ServeSession::CheckUndead() {
  for (Job& job : jobs_) {
    if (!job.undead || state_ == State::kStopping) continue;
    const bool is_over = job.undead->process->SurvivorsAreGone();
    if (!is_over && SteadyNow() < job.undead->given_up_at) continue;
    const Undead undead = *std::exchange(job.undead, std::nullopt);
    if (is_over) {
      Restart(job, undead.reason);
    } else {
      GiveUpReplica(job,
                    absl::StrCat(undead.reason, "; given up: ", undead.process->exit()->Undying()));
    }
  }
}

void ServeSession::Restart(Job& job, std::string reason) {
  const std::optional<absl::Duration> delay = job.restarts.OnLoss(SteadyNow(), job.has_served);
  if (!delay) {
    if (job.restarts.limits().max_restarts > 0) {
      absl::StrAppend(&reason, "; given up: ", job.restarts.Exhausted());
    }
    return GiveUpReplica(job, std::move(reason));
  }
  ++job.epoch;
  job.start_at = SteadyNow() + *delay;
  controller_->BeginEpoch(job.replica, job.epoch);
  report_.Restarting({.replica = job.replica,
                      .epoch = job.epoch,
                      .reason = reason,
                      .delay = *delay,
                      .num_recent = job.restarts.num_recent(),
                      .limits = job.restarts.limits()});
}

// The others go on with its requests.
void ServeSession::GiveUpReplica(Job& job, std::string reason) {
  job.given_up = true;
  if (absl::c_all_of(jobs_, [](const Job& each) { return each.given_up; })) {
    return GiveUp(std::move(reason));
  }
  controller_->GiveUpReplica(job.replica, reason);
  report_.GivenUp(job.replica, reason);
}

void ServeSession::CheckPreflights() {
  for (Job& job : jobs_) {
    if (!job.process || job.roll.IsComplete() || SteadyNow() < job.preflight_deadline) continue;
    const std::string missing = job.roll.Missing(controller_->worker_addresses().front());
    // mpirun may hang after its words.
    const std::string& start_failure = job.output.start_failure();
    LoseJob(job,
            absl::StrCat("after ", absl::FormatDuration(options_.preflight_limit), " ",
                         start_failure.empty() ? missing : start_failure),
            has_served_);
  }
}

void ServeSession::StartDueJobs() {
  for (Job& job : jobs_) {
    if (job.process || SteadyNow() < job.start_at) continue;
    const absl::Status status = StartJob(job);
    if (status.ok()) continue;
    // What ran once may run again: processes or memory may be short for a moment.
    if (!has_served_) return GiveUp(std::string(status.message()));
    Restart(job, std::string(status.message()));
  }
}

void ServeSession::GiveUp(std::string reason) {
  if (!failure_) failure_ = std::move(reason);
  state_ = State::kStopping;
}

void ServeSession::EndJob(Job& job, absl::Time own_end) {
  if (job.process && !job.process->Wait(own_end)) job.process->Terminate(kTerminateGrace);
  const JobSupervisor* last = job.undead ? job.undead->process.get() : job.process.get();
  if (last == nullptr) return;
  const std::string survivors = last->exit()->Undying();
  if (!survivors.empty()) report_.Warn({absl::StrCat("left behind: ", survivors)});
}

absl::Status ServeSession::End() {
  if (failure_) {
    controller_->Fail(*failure_);
    for (Job& job : jobs_) EndJob(job, absl::InfinitePast());
    metrics_.reset();
    controller_->Shutdown();
    gateway_.reset();
    return absl::UnavailableError(*failure_);
  }
  metrics_.reset();         // asks the controller
  controller_->Shutdown();  // tells the ranks, which then leave the job in order
  gateway_.reset();         // with all the answers that there will be
  for (const News& news : mailbox_.TakeAll()) {
    if (news.event.kind == ControllerEvent::Kind::kDrained) drained_ = news.event;
  }
  const absl::Duration patience = has_served_ ? kOrderlyExitTimeout : absl::ZeroDuration();
  const absl::Time deadline = SteadyNow() + patience;
  for (Job& job : jobs_) EndJob(job, deadline);
  if (drained_) report_.Served(drained_->served, drained_->prediction);
  report_.Stopped(how_stopped_);
  return absl::OkStatus();
}

}  // namespace lockstep
