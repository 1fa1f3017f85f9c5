#include "launcher/bench/load_generator.h"

#include <algorithm>
#include <utility>

#include "kernels/base/steady_clock.h"

namespace lockstep {
namespace {

constexpr absl::Duration kProgressInterval = absl::Milliseconds(500);

std::string CodeName(const grpc::Status& status) {
  return absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code()));
}

}  // namespace

// times and num_prompt_tokens belong to the call's gRPC thread until it reported itself finished.
struct LoadGenerator::ActiveCall {
  explicit ActiveCall(absl::Time arrival) : times(arrival) {}
  RequestTimes times;
  int64_t num_prompt_tokens = 0;
  std::unique_ptr<GenerationCall> call;  // last: destroyed first
};

LoadGenerator::LoadGenerator(const Connection& connection, const Workload& workload,
                             absl::Duration timeout, InterruptWatcher& interrupts,
                             OnProgress progress)
    : connection_(connection),
      workload_(workload),
      timeout_(timeout),
      interrupts_(interrupts),
      progress_(std::move(progress)) {}

LoadGenerator::~LoadGenerator() = default;

Measurements LoadGenerator::Run(const LoadShape& shape, uint64_t first_index) {
  Measurements measurements;
  shape_ = shape;
  next_index_ = first_index;
  num_sent_ = num_done_ = 0;
  num_tokens_ = 0;
  started_ = SteadyNow();
  next_report_ = started_ + kProgressInterval;
  clock_.reset();
  if (shape.rate > 0) {
    clock_.emplace(shape.arrivals, shape.rate, shape.seed);
    next_arrival_ = started_ + absl::Seconds(clock_->Next());
  }
  while (MaySend() || !active_.empty()) {
    SendDue();
    WaitReadable({mailbox_.fd(), interrupts_.fd()}, UntilNextEvent());
    if (interrupts_.TakeCount() > 0) HandleInterrupt();
    Collect(measurements);
    ReportProgress();
  }
  return measurements;
}

bool LoadGenerator::MaySend() const {
  if (interrupted_ || SteadyNow() - started_ >= shape_.duration) return false;
  return shape_.num_requests == 0 || num_sent_ < shape_.num_requests;
}

void LoadGenerator::SendDue() {
  if (!clock_) {
    while (MaySend() && static_cast<int64_t>(active_.size()) < shape_.concurrency)
      Send(SteadyNow());
    return;
  }
  while (MaySend() && next_arrival_ <= SteadyNow()) {
    Send(next_arrival_);
    next_arrival_ = started_ + absl::Seconds(clock_->Next());
  }
}

absl::Duration LoadGenerator::UntilNextEvent() const {
  absl::Time next = next_report_;
  if (MaySend()) next = std::min(next, started_ + shape_.duration);
  if (clock_ && MaySend()) next = std::min(next, next_arrival_);
  return std::max(next - SteadyNow(), absl::ZeroDuration());
}

void LoadGenerator::Send(absl::Time arrival) {
  const uint64_t index = next_index_++;
  ++num_sent_;
  auto owned = std::make_unique<ActiveCall>(arrival);
  ActiveCall& active = *owned;
  active_.emplace(index, std::move(owned));
  const auto on_event = [this, &active](const v1::GenerateEvent& event) {
    if (event.has_accepted()) active.num_prompt_tokens = event.accepted().num_prompt_tokens();
    if (!event.has_delta() || event.delta().token_ids().empty()) return true;
    active.times.AddTokens(event.delta().token_ids_size(), SteadyNow());
    num_tokens_.fetch_add(event.delta().token_ids_size(), std::memory_order_relaxed);
    return true;
  };
  const auto on_done = [this, &active, index](const grpc::Status& status) {
    active.times.Finish(SteadyNow());
    mailbox_.Put({index, status});
  };
  active.call = std::make_unique<GenerationCall>(connection_, workload_.Request(index), timeout_,
                                                 GenerationCall::Handlers{on_event, on_done});
}

void LoadGenerator::Collect(Measurements& measurements) {
  for (const Finished& finished : mailbox_.TakeAll()) {
    const auto entry = active_.find(finished.index);
    LS_CHECK(entry != active_.end()) << finished.index;
    const bool cancelled_by_us =
        interrupted_ && finished.status.error_code() == grpc::StatusCode::CANCELLED;
    if (finished.status.ok()) {
      measurements.AddCompleted(entry->second->times, entry->second->num_prompt_tokens);
    } else if (!cancelled_by_us) {
      measurements.AddFailed(CodeName(finished.status), finished.status.error_message());
    }
    active_.erase(entry);
    ++num_done_;
  }
}

void LoadGenerator::HandleInterrupt() {
  interrupted_ = true;
  for (const auto& [index, active] : active_) active->call->Cancel();
}

void LoadGenerator::ReportProgress() {
  const absl::Time now = SteadyNow();
  if (now < next_report_) return;
  next_report_ = now + kProgressInterval;
  if (!progress_) return;
  progress_({now - started_, num_done_, static_cast<int64_t>(active_.size()),
             num_tokens_.load(std::memory_order_relaxed)});
}

}  // namespace lockstep
