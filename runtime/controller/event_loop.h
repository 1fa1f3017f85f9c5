// The controller's one thread of decisions: it owns the engine, the replica and the table of
// requests.
//
// Drain what others posted (requests, cancellations, ranks' messages; results are committed) ->
// Schedule -> Send -> Stream. Public methods are called from any thread and only post; private ones
// run on the loop's thread. Text is made and clients are written to by a second thread, so that the
// next plan never waits for a client.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "lockstep/v1/generation.pb.h"
#include "lockstep/v1/worker.pb.h"
#include "runtime/controller/controller.h"
#include "runtime/controller/health_service.h"
#include "runtime/controller/replica.h"
#include "runtime/controller/request_stream.h"
#include "runtime/controller/request_table.h"
#include "runtime/controller/request_validation.h"
#include "runtime/controller/serving_state.h"
#include "runtime/controller/task_queue.h"
#include "runtime/engine/engine.h"

namespace lockstep {

struct EventLoopConfig {
  ReplicaIdentity replica;
  engine::EngineConfig engine;  // num_blocks and max_model_len are set when the ranks are ready
  int64_t max_model_len = 0;    // as asked; 0 = what the model and the cache allow
  int64_t max_position_embeddings = 0;
  RequestLimits limits;  // max_model_len is set when the ranks are ready
  absl::Duration heartbeat_interval;
  absl::Duration step_timeout;
  absl::Duration recovery_window;
  std::function<void(const ControllerEvent&)> observer;
};

class EventLoop {
 public:
  // health must outlive Stop().
  EventLoop(EventLoopConfig config, HealthService& health);
  ~EventLoop();  // Stop
  // Ends the thread after what is queued. Idempotent.
  void Stop();

  const ServingState& serving() const { return serving_; }
  void CountRejected() { num_rejected_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t NextRequestNumber() { return next_number_.fetch_add(1, std::memory_order_relaxed); }

  void Submit(engine::EngineRequest request, std::shared_ptr<RequestStream> stream);
  void Cancel(uint64_t number);
  void AbortByName(std::string request_id, absl::AnyInvocable<void(bool was_running)> done);
  void GetStatus(absl::AnyInvocable<void(v1::GetStatusResponse)> done);

  void RankSaid(std::shared_ptr<RankLink> link, v1::FromRank message);
  void RankClosed(std::shared_ptr<RankLink> link, std::string why);

  void Fail(std::string reason);
  void BeginEpoch(uint64_t epoch);
  void BeginDrain();
  // Ends every request and tells the ranks to shut down.
  void EndAll(std::string reason);

 private:
  using Phase = ServingState::Phase;
  struct StepInFlight {
    uint64_t step_id = 0;
    std::vector<uint32_t> sampling_slots;
    absl::Time sent_at;
  };
  struct Delivery {
    std::shared_ptr<RequestStream> stream;
    engine::EngineEvent event;
  };
  struct Counters {
    uint64_t accepted = 0;
    uint64_t finished = 0;
    uint64_t aborted = 0;
  };

  void Run();
  void ScheduleAndSend();
  void Send(const engine::StepPlan& plan, absl::Time now);
  void Stream();
  void CheckDeadlines(absl::Time now);
  absl::Time NextWakeup() const;

  void Add(engine::EngineRequest request, std::shared_ptr<RequestStream> stream);
  void CancelNow(uint64_t number);
  bool AbortNow(const std::string& request_id);
  void StopOutput(uint64_t number, uint32_t sequence_index);
  void EndRequests(v1::FinishReason reason, const grpc::Status& status);
  void EndOne(const std::shared_ptr<RequestStream>& stream, v1::FinishReason reason,
              const grpc::Status& status);
  static void DeliverAll(EventLoop& loop, std::vector<Delivery>& deliveries);

  void Greet(std::shared_ptr<RankLink> link, const v1::Hello& hello);
  void Hear(const RankLink* link, const v1::FromRank& message);
  absl::Status Handle(int rank, const v1::FromRank& message);
  absl::Status Commit(const v1::StepResult& message);
  absl::Status StartRanks();
  void StartEngine();
  void LoseReplica(int rank, const std::string& why);
  void DropReplica(const grpc::Status& status);
  void FailNow(const std::string& reason);
  void BeginEpochNow(uint64_t epoch);

  v1::GetStatusResponse StatusNow() const;
  void SetPhase(Phase phase, std::string detail);
  void EndDrain();
  ControllerEvent EventOf(ControllerEvent::Kind kind, int rank = -1) const;
  void Tell(const ControllerEvent& event) const;

  EventLoopConfig config_;
  const absl::Time started_at_;
  std::atomic<uint64_t> next_number_{1};
  std::atomic<uint64_t> num_rejected_{0};

  // Loop thread only.
  Phase phase_ = Phase::kStarting;
  bool draining_ = false;
  bool drained_ = false;
  bool ended_ = false;
  std::string detail_;
  std::unique_ptr<Replica> replica_;        // null between its loss and the next epoch
  std::unique_ptr<engine::Engine> engine_;  // from the first epoch that became ready
  int64_t agreed_kv_blocks_ = 0;
  absl::Time recovery_deadline_ = absl::InfiniteFuture();
  std::deque<StepInFlight> in_flight_;
  RequestTable requests_;
  Counters counters_;

  ServingState serving_;
  TaskThread stream_thread_;
  TaskQueue queue_;
  std::thread thread_;
};

}  // namespace lockstep
