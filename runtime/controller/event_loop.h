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
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lockstep/v1/generation.pb.h"
#include "lockstep/v1/worker.pb.h"
#include "runtime/controller/controller.h"
#include "runtime/controller/health_service.h"
#include "runtime/controller/replica.h"
#include "runtime/controller/request_stream.h"
#include "runtime/controller/request_table.h"
#include "runtime/controller/request_validation.h"
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
  struct Capacity {
    RequestLimits limits;
    int64_t num_kv_blocks = 0;
  };

  // health must outlive Stop().
  EventLoop(EventLoopConfig config, HealthService& health);
  ~EventLoop();  // Stop
  // Ends the thread after what is queued. Idempotent.
  void Stop();

  // What requests are checked against, or UNAVAILABLE while none are accepted.
  absl::StatusOr<Capacity> Admission();
  std::optional<Capacity> capacity();  // once known
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

  absl::Status WaitServing(absl::Time deadline);
  bool WaitDrained(absl::Time deadline);

 private:
  enum class State { kStarting, kServing, kRecovering, kFailed };
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
  // What other threads may see.
  struct Published {
    State state = State::kStarting;
    bool draining = false;
    bool drained = false;
    std::string detail;
    std::optional<Capacity> capacity;
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
  void SetState(State state, std::string detail);
  void PublishDrained();
  ControllerEvent EventOf(ControllerEvent::Kind kind, int rank = -1) const;
  void Tell(const ControllerEvent& event) const;

  EventLoopConfig config_;
  HealthService& health_;
  const absl::Time started_at_;
  std::atomic<uint64_t> next_number_{1};
  std::atomic<uint64_t> num_rejected_{0};

  // Loop thread only.
  State state_ = State::kStarting;
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

  absl::Mutex mutex_;
  absl::CondVar published_changed_;
  Published published_ ABSL_GUARDED_BY(mutex_);

  TaskThread stream_thread_;
  TaskQueue queue_;
  std::thread thread_;
};

}  // namespace lockstep
