#include "runtime/controller/event_loop.h"

#include <utility>

#include "absl/synchronization/notification.h"
#include "kernels/base/check.h"
#include "kernels/base/steady_clock.h"
#include "runtime/controller/wire.h"

namespace lockstep {

EventLoop::EventLoop(CoreConfig config, std::function<void(const ControllerEvent&)> observer,
                     HealthService& health)
    : observer_(std::move(observer)),
      started_at_(SteadyNow()),
      serving_(health),
      core_(config, *this, started_at_),
      forecast_(std::move(config.predict_speed)) {
  thread_ = std::thread([this] { Run(); });
}

EventLoop::~EventLoop() { Stop(); }

void EventLoop::Stop() {
  queue_.Close();
  if (thread_.joinable()) thread_.join();
  stream_thread_.Stop();
  forecast_.Stop();
}

void EventLoop::Run() {
  std::vector<Task> tasks;
  while (queue_.Take(core_.NextWakeup(), tasks)) {
    for (Task& task : tasks) task();
    tasks.clear();
    core_.Advance(SteadyNow());
    queues_are_full_.store(core_.QueuesAreFull(), std::memory_order_relaxed);
    Stream();
  }
}

// --- clients ---

void EventLoop::Submit(engine::EngineRequest request, std::shared_ptr<RequestStream> stream) {
  queue_.Push([this, request = std::move(request), stream = std::move(stream)]() mutable {
    Add(std::move(request), std::move(stream));
  });
}

void EventLoop::Add(engine::EngineRequest request, std::shared_ptr<RequestStream> stream) {
  if (stream->writer().cancelled()) return;
  const uint64_t number = request.request_id;
  const absl::Time now = SteadyNow();
  absl::Status status;
  if (stream->spec().attaches) status = core_.CheckAdd(request, now);
  if (status.ok() && stream->spec().attaches) {
    core_.Abort(stream->spec().request_id,
                grpc::Status(grpc::StatusCode::ABORTED, "another client attached to this request"));
  }
  if (status.ok()) {
    status = core_.Add(std::move(request), stream->spec().request_id, now);
  }
  if (!status.ok()) {
    CountRejected(status);
    stream->writer().Close(ToGrpcStatus(status));
    return;
  }
  LS_CHECK(streams_.emplace(number, stream).second);
  stream_thread_.Push([stream = std::move(stream)] { stream->Accept(); });
}

void EventLoop::Cancel(uint64_t number) {
  queue_.Push([this, number] { core_.Cancel(number); });
}

void EventLoop::CallEnded(uint64_t number) {
  queue_.Push([this, number] { core_.CallEnded(number); });
}

void EventLoop::AbortByName(std::string request_id, absl::AnyInvocable<void(bool)> done) {
  queue_.Push([this, request_id = std::move(request_id), done = std::move(done)]() mutable {
    stream_thread_.Push([was_running = core_.Abort(request_id), done = std::move(done)]() mutable {
      done(was_running);
    });
  });
}

void EventLoop::GetStatus(absl::AnyInvocable<void(v1::GetStatusResponse)> done) {
  queue_.Push([this, done = std::move(done)]() mutable {
    const absl::Time now = SteadyNow();
    v1::GetStatusResponse status = core_.Status(now);
    status.set_uptime_ms(absl::ToInt64Milliseconds(now - started_at_));
    rejections_.AddTo(status);
    forecast_.Complete(std::move(status), std::move(done));
  });
}

// --- ranks, and whoever starts them ---

void EventLoop::RankSaid(std::shared_ptr<RankLink> link, v1::FromRank message) {
  queue_.Push([this, link = std::move(link), message = std::move(message)] {
    core_.RankSaid(link, message, SteadyNow());
  });
}

void EventLoop::RankClosed(std::shared_ptr<RankLink> link, std::string why) {
  queue_.Push([this, link = std::move(link), why = std::move(why)] {
    core_.RankClosed(*link, why, SteadyNow());
  });
}

void EventLoop::Warn(std::string message) {
  queue_.Push([this, message = std::move(message)]() mutable {
    ControllerEvent event;
    event.kind = ControllerEvent::Kind::kWarning;
    event.message = std::move(message);
    Tell(event);
  });
}

void EventLoop::Fail(std::string reason) {
  queue_.Push([this, reason = std::move(reason)] { core_.Fail(reason); });
}

void EventLoop::BeginEpoch(int replica, uint64_t epoch) {
  queue_.Push([this, replica, epoch] { core_.BeginEpoch(replica, epoch, SteadyNow()); });
}

void EventLoop::GiveUpReplica(int replica, std::string reason) {
  queue_.Push(
      [this, replica, reason = std::move(reason)] { core_.GiveUpReplica(replica, reason); });
}

void EventLoop::BeginDrain() {
  queue_.Push([this] { core_.BeginDrain(); });
}

void EventLoop::EndAll(std::string reason) {
  absl::Notification done;
  queue_.Push([&, this] {
    core_.EndAll(reason);
    done.Notify();
  });
  done.WaitForNotification();
}

// --- what comes out ---

void EventLoop::Deliver(engine::EngineEvent event) {
  const auto found = streams_.find(event.request_id);
  LS_CHECK(found != streams_.end()) << "request " << event.request_id;
  deliveries_.push_back({found->second, std::move(event)});
}

void EventLoop::End(uint64_t number, v1::FinishReason reason, const grpc::Status& status) {
  Stream();  // what came before
  stream_thread_.Push(
      [stream = streams_.at(number), reason, status] { stream->EndAll(reason, status); });
}

void EventLoop::Forget(uint64_t number) { streams_.erase(number); }

void EventLoop::Publish(const ServingState::Snapshot& snapshot) { serving_.Publish(snapshot); }

void EventLoop::Drained() { serving_.PublishDrained(); }

void EventLoop::Tell(const ControllerEvent& event) {
  if (observer_) observer_(event);
}

void EventLoop::Stream() {
  if (deliveries_.empty()) return;
  stream_thread_.Push([this, deliveries = std::exchange(deliveries_, {})]() mutable {
    DeliverAll(*this, deliveries);
  });
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
          loop.core_.FinishOutput(number, index);
        });
        break;
      case RequestStream::Next::kCancel:
        loop.Cancel(number);
        break;
    }
  }
}

}  // namespace lockstep
