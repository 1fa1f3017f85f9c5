#include "runtime/controller/event_loop.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "runtime/controller/wire.h"
#include "runtime/worker/plan_codec.h"

namespace lockstep {

EventLoop::EventLoop(EventLoopConfig config, HealthService& health)
    : config_(std::move(config)),
      started_at_(absl::Now()),
      replica_(std::make_unique<Replica>(config_.replica)),
      serving_(health) {
  SetPhase(Phase::kStarting, replica_->Progress());
  thread_ = std::thread([this] { Run(); });
}

EventLoop::~EventLoop() { Stop(); }

void EventLoop::Stop() {
  queue_.Close();
  if (thread_.joinable()) thread_.join();
  stream_thread_.Stop();
}

void EventLoop::Run() {
  std::vector<Task> tasks;
  while (queue_.Take(NextWakeup(), tasks)) {
    for (Task& task : tasks) task();
    tasks.clear();
    CheckDeadlines(absl::Now());
    ScheduleAndSend();
    Stream();
  }
}

// --- the steps ---

void EventLoop::ScheduleAndSend() {
  if (phase_ != Phase::kServing) return;
  const absl::Time now = absl::Now();
  while (std::optional<engine::StepPlan> plan = engine_->Schedule(now)) Send(*plan, now);
}

// Serialised once; every rank's stream shares the bytes.
void EventLoop::Send(const engine::StepPlan& plan, absl::Time now) {
  v1::ToRank message;
  EncodePlan(plan, message.mutable_plan());
  replica_->SendAll(SerializeMessage(message));
  in_flight_.push_back({plan.step_id, SamplingSlots(plan), now});
}

absl::Status EventLoop::Commit(const v1::StepResult& message) {
  if (in_flight_.empty() || message.step_id() != in_flight_.front().step_id) {
    return absl::FailedPreconditionError(
        absl::StrCat("it sent the result of step ", message.step_id(), ", expected was ",
                     in_flight_.empty() ? 0 : in_flight_.front().step_id));
  }
  ASSIGN_OR_RETURN(
      const engine::StepResult result,
      DecodeResult(message, in_flight_.front().sampling_slots, config_.limits.vocab_size));
  const absl::Time now = absl::Now();
  RETURN_IF_ERROR(engine_->Commit(result, now));
  in_flight_.pop_front();
  // The time of a step that ran ahead counts from when its turn came.
  if (!in_flight_.empty()) in_flight_.front().sent_at = now;
  return absl::OkStatus();
}

void EventLoop::Stream() {
  if (engine_ == nullptr) return;
  std::vector<Delivery> deliveries;
  for (engine::EngineEvent& event : engine_->TakeEvents()) {
    std::shared_ptr<RequestStream> stream = requests_.Find(event.request_id);
    if (stream == nullptr) continue;
    if (event.finish && requests_.FinishOutput(event.request_id, event.sequence_index)) {
      ++counters_.finished;
    }
    deliveries.push_back({std::move(stream), std::move(event)});
  }
  if (!deliveries.empty()) {
    stream_thread_.Push(
        [this, deliveries = std::move(deliveries)]() mutable { DeliverAll(*this, deliveries); });
  }
  if (draining_ && requests_.empty()) EndDrain();
}

// On the stream thread.
void EventLoop::DeliverAll(EventLoop& loop, std::vector<Delivery>& deliveries) {
  for (const Delivery& delivery : deliveries) {
    const uint64_t number = delivery.stream->spec().number;
    switch (delivery.stream->Deliver(delivery.event)) {
      case RequestStream::Next::kContinue:
        break;
      case RequestStream::Next::kStopOutput:
        loop.queue_.Push([&loop, number, index = delivery.event.sequence_index] {
          loop.StopOutput(number, index);
        });
        break;
      case RequestStream::Next::kCancel:
        loop.Cancel(number);
        break;
    }
  }
}

absl::Time EventLoop::NextWakeup() const {
  absl::Time wakeup = recovery_deadline_;
  if (phase_ == Phase::kServing) wakeup = std::min(wakeup, engine_->NextWakeup());
  if (!in_flight_.empty()) {
    wakeup = std::min(wakeup, in_flight_.front().sent_at + config_.step_timeout);
  }
  return wakeup;
}

void EventLoop::CheckDeadlines(absl::Time now) {
  if (!in_flight_.empty() && now >= in_flight_.front().sent_at + config_.step_timeout) {
    LoseReplica(replica_->FurthestBehind(),
                absl::StrCat("step ", in_flight_.front().step_id, " has no result after ",
                             absl::FormatDuration(config_.step_timeout)));
  }
  if (now >= recovery_deadline_) FailNow(absl::StrCat("no new ranks came: ", detail_));
}

// --- requests ---

void EventLoop::Submit(engine::EngineRequest request, std::shared_ptr<RequestStream> stream) {
  queue_.Push([this, request = std::move(request), stream = std::move(stream)]() mutable {
    Add(std::move(request), std::move(stream));
  });
}

void EventLoop::Add(engine::EngineRequest request, std::shared_ptr<RequestStream> stream) {
  if (stream->writer().cancelled()) return;
  absl::Status status = serving_.Admission().status();
  if (status.ok()) status = requests_.CheckNew(stream->spec().request_id);
  if (status.ok()) status = engine_->Add(std::move(request), absl::Now());
  if (!status.ok()) {
    CountRejected();
    stream->writer().Close(ToGrpcStatus(status));
    return;
  }
  ++counters_.accepted;
  requests_.Insert(stream);
  stream_thread_.Push([stream = std::move(stream)] { stream->Accept(); });
}

void EventLoop::Cancel(uint64_t number) {
  queue_.Push([this, number] { CancelNow(number); });
}

void EventLoop::CancelNow(uint64_t number) {
  if (requests_.Find(number) == nullptr) return;
  engine_->Abort(number);
  requests_.Remove(number);
  ++counters_.aborted;
}

void EventLoop::AbortByName(std::string request_id, absl::AnyInvocable<void(bool)> done) {
  queue_.Push([this, request_id = std::move(request_id), done = std::move(done)]() mutable {
    done(AbortNow(request_id));
  });
}

bool EventLoop::AbortNow(const std::string& request_id) {
  const std::shared_ptr<RequestStream> stream = requests_.FindByName(request_id);
  if (stream == nullptr) return false;
  EndOne(stream, v1::FINISH_REASON_ABORTED, grpc::Status::OK);
  return true;
}

void EventLoop::StopOutput(uint64_t number, uint32_t sequence_index) {
  if (requests_.Find(number) == nullptr) return;
  engine_->FinishOutput(number, sequence_index);
  if (requests_.FinishOutput(number, sequence_index)) ++counters_.finished;
}

void EventLoop::EndOne(const std::shared_ptr<RequestStream>& stream, v1::FinishReason reason,
                       const grpc::Status& status) {
  CancelNow(stream->spec().number);
  stream_thread_.Push([stream, reason, status] { stream->EndAll(reason, status); });
}

void EventLoop::EndRequests(v1::FinishReason reason, const grpc::Status& status) {
  for (const std::shared_ptr<RequestStream>& stream : requests_.All()) {
    EndOne(stream, reason, status);
  }
}

void EventLoop::GetStatus(absl::AnyInvocable<void(v1::GetStatusResponse)> done) {
  queue_.Push([this, done = std::move(done)]() mutable { done(StatusNow()); });
}

}  // namespace lockstep
