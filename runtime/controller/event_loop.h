// The controller's one thread of decisions: it owns the core and gives it a clock, a queue and
// streams.
//
// Drain what others posted (requests, cancellations, ranks' messages) -> Advance (plans go out,
// events come out) -> stream. Public methods are called from any thread and only post; private ones
// run on the loop's thread. Text is made and clients are written to by a second thread, so that the
// next plan never waits for a client.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "lockstep/v1/generation.pb.h"
#include "lockstep/v1/worker.pb.h"
#include "runtime/controller/controller.h"
#include "runtime/controller/core.h"
#include "runtime/controller/health_service.h"
#include "runtime/controller/rank_link.h"
#include "runtime/controller/rejection_counts.h"
#include "runtime/controller/request_stream.h"
#include "runtime/controller/serving_state.h"
#include "runtime/controller/speed_forecast.h"
#include "runtime/controller/task_queue.h"
#include "runtime/engine/engine.h"

namespace lockstep {

class EventLoop final : private CoreOutput {
 public:
  // health must outlive Stop(). The observer is called from the loop's thread.
  EventLoop(CoreConfig config, std::function<void(const ControllerEvent&)> observer,
            HealthService& health);
  ~EventLoop() override;  // Stop
  // Ends the thread after what is queued. Idempotent.
  void Stop();

  const ServingState& serving() const { return serving_; }
  // As of the loop's last round: a request would only be refused. Saves the crowd at the door the
  // way through the loop.
  bool queues_are_full() const { return queues_are_full_.load(std::memory_order_relaxed); }
  void CountRejected(const absl::Status& status) { rejections_.Count(status.code()); }
  uint64_t NextRequestNumber() { return next_number_.fetch_add(1, std::memory_order_relaxed); }

  void Submit(engine::EngineRequest request, std::shared_ptr<RequestStream> stream);
  void Cancel(uint64_t number);
  // Of a request that was submitted: its client has been told all, or is gone.
  void CallEnded(uint64_t number);
  // done: on the streams' thread, after what was accepted before.
  void AbortByName(std::string request_id, absl::AnyInvocable<void(bool was_running)> done);
  // done: on the loop's thread or the forecast's.
  void GetStatus(absl::AnyInvocable<void(v1::GetStatusResponse)> done);

  void RankSaid(std::shared_ptr<RankLink> link, v1::FromRank message);
  void RankClosed(std::shared_ptr<RankLink> link, std::string why);

  void Warn(std::string message);  // as an event
  void Fail(std::string reason);
  void BeginEpoch(int replica, uint64_t epoch);
  void GiveUpReplica(int replica, std::string reason);
  void BeginDrain();
  // Ends every request and tells the ranks to shut down. Returns when that is done.
  void EndAll(std::string reason);

 private:
  struct Delivery {
    std::shared_ptr<RequestStream> stream;
    engine::EngineEvent event;
  };

  void Run();
  void Add(engine::EngineRequest request, std::shared_ptr<RequestStream> stream);
  void Stream();
  static void DeliverAll(EventLoop& loop, std::vector<Delivery>& deliveries);

  void Deliver(engine::EngineEvent event) override;
  void End(uint64_t number, v1::FinishReason reason, const grpc::Status& status) override;
  void Forget(uint64_t number) override;
  void Publish(const ServingState::Snapshot& snapshot) override;
  void Drained() override;
  void Tell(const ControllerEvent& event) override;

  const std::function<void(const ControllerEvent&)> observer_;
  const absl::Time started_at_;
  std::atomic<uint64_t> next_number_{1};
  RejectionCounts rejections_;
  std::atomic<bool> queues_are_full_{false};
  ServingState serving_;

  // Loop thread only. Streams are shared with the stream thread, which may still be writing what
  // the loop handed over.
  absl::flat_hash_map<uint64_t, std::shared_ptr<RequestStream>> streams_;
  std::vector<Delivery> deliveries_;  // of this round
  ControllerCore core_;

  SpeedForecast forecast_;
  TaskThread stream_thread_;
  TaskQueue queue_;
  std::thread thread_;
};

}  // namespace lockstep
