#include "launcher/serving/serve_session.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"
#include "launcher/cli/values.h"
#include "launcher/job/mpi_command.h"

namespace lockstep {
namespace {

constexpr uint64_t kFirstEpoch = 1;
// The controller's event names the rank and its operation, mpirun's words the signal; they come
// apart.
constexpr absl::Duration kLastWordsTimeout = absl::Seconds(3);
constexpr absl::Duration kOrderlyExitTimeout = absl::Seconds(3);
constexpr absl::Duration kTerminateGrace = absl::Seconds(3);
constexpr char kJobEnded[] = "the job of ranks ended unexpectedly";
constexpr char kWorkerErrorPrefix[] = "lockstep worker: ";

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
  options_.controller.epoch = kFirstEpoch;
  options_.controller.observer = [this](const ControllerEvent& event) { mailbox_.Put(event); };
  ASSIGN_OR_RETURN(controller_, Controller::Start(options_.controller));
  if (options_.make_job != nullptr) return StartJob(kFirstEpoch);
  report_.WaitingForRanks(controller_->worker_addresses().front(), options_.secret_file);
  return absl::OkStatus();
}

absl::Status ServeSession::StartJob(uint64_t epoch) {
  ASSIGN_OR_RETURN(const JobSpec spec,
                   options_.make_job(epoch, controller_->worker_addresses().front()));
  ASSIGN_OR_RETURN(
      job_, JobSupervisor::Start(spec, [this](absl::string_view line) { HandleLine(line); }));
  return absl::OkStatus();
}

void ServeSession::Step() {
  WaitReadable({mailbox_.fd(), interrupts_.fd(), job_ ? job_->output_fd() : -1},
               drain_deadline_ - absl::Now());
  HandleInterrupts();
  HandleEvents();
  HandleJobOutput();
  if (state_ == State::kDraining && absl::Now() >= drain_deadline_) {
    how_stopped_ = "with requests unfinished: the time to drain is over";
    state_ = State::kStopping;
  }
}

void ServeSession::HandleInterrupts() {
  const int count = interrupts_.TakeCount();
  if (count == 0) return;
  if (state_ != State::kServing || count > 1) {
    how_stopped_ = state_ == State::kStarting ? "before serving" : "at once";
    state_ = State::kStopping;
    return;
  }
  state_ = State::kDraining;
  drain_deadline_ = absl::Now() + options_.drain_timeout;
  report_.Draining(absl::ToDoubleSeconds(options_.drain_timeout));
  controller_->BeginDrain();
}

void ServeSession::HandleEvents() {
  for (const ControllerEvent& event : mailbox_.TakeAll()) Handle(event);
}

void ServeSession::Handle(const ControllerEvent& event) {
  using Kind = ControllerEvent::Kind;
  switch (event.kind) {
    case Kind::kRankJoined:
      return report_.RankJoined(event);
    case Kind::kRankLoading:
      return report_.RankLoading(event);
    case Kind::kRankLoaded:
      return report_.RankLoaded(event);
    case Kind::kServing:
      if (state_ == State::kStarting) state_ = State::kServing;
      has_served_ = true;
      return report_.Serving(event,
                             HostPort{options_.listen_host, controller_->client_port()}.ToString());
    case Kind::kRankLost:
    case Kind::kFailed:
      if (!failure_) failure_ = event.message;
      state_ = State::kStopping;
      return;
    case Kind::kDrained:
      if (state_ == State::kDraining) {
        how_stopped_ = "after all requests finished";
        state_ = State::kStopping;
      }
      return;
  }
}

void ServeSession::HandleJobOutput() {
  if (!job_) return;
  job_->ReadOutput();
  if (job_->output_fd() >= 0 || state_ == State::kStopping) return;
  // mpirun is gone: the controller will have noticed too and knows more.
  WaitReadable({mailbox_.fd()}, kLastWordsTimeout);
  HandleEvents();
  if (!failure_) failure_ = kJobEnded;
  state_ = State::kStopping;
}

void ServeSession::HandleLine(absl::string_view line) {
  const JobLine parsed = ParseJobLine(line);
  if (parsed.rank) {
    // Told in the launcher's own error instead, once and not by every rank.
    if (absl::StartsWith(parsed.text, kWorkerErrorPrefix)) {
      if (rank_error_.empty()) rank_error_ = parsed.text.substr(sizeof(kWorkerErrorPrefix) - 1);
    } else {
      report_.RankOutput(*parsed.rank, parsed.text);
    }
    return;
  }
  if (const auto reason = ParseRankKilled(parsed.text)) {
    kill_reason_ = *reason;
    return;
  }
  if (!IsMpirunNoise(parsed.text)) report_.RankOutput(-1, parsed.text);
}

std::string ServeSession::ReasonWithDetail() const {
  if (!kill_reason_.empty()) return absl::StrCat(*failure_, " (", kill_reason_, ")");
  if (!rank_error_.empty() && !absl::StrContains(*failure_, "it failed: ")) {
    return absl::StrCat(*failure_, " (", rank_error_, ")");
  }
  if (*failure_ == kJobEnded && job_ && job_->exit()) {
    return absl::StrCat(*failure_, " (mpirun: ", job_->exit()->ToString(), ")");
  }
  return *failure_;
}

absl::Status ServeSession::End() {
  if (failure_) {
    if (job_ && !job_->Wait(absl::Now() + kLastWordsTimeout)) job_->Terminate(kTerminateGrace);
    const std::string reason = ReasonWithDetail();
    controller_->Fail(reason);
    controller_->Shutdown();
    report_.Failed(reason);
    return absl::UnavailableError(reason);
  }
  controller_->Shutdown();  // tells the ranks, which then leave the job in order
  const absl::Duration patience = has_served_ ? kOrderlyExitTimeout : absl::ZeroDuration();
  if (job_ && !job_->Wait(absl::Now() + patience)) job_->Terminate(kTerminateGrace);
  report_.Stopped(how_stopped_);
  return absl::OkStatus();
}

}  // namespace lockstep
