// The controller's decisions: which requests are accepted, which replica runs them, what every
// replica does next, when a rank counts as lost and what follows. A deterministic state machine: no
// clock, no I/O, no threads; time comes in as an argument and everything that happens goes out
// through CoreOutput. Driven by the event loop, or by a simulation.
//
// Invariants: an accepted request lives in exactly one replica's engine until it ends; while any
// replica serves, no request waits on one that does not; nothing that a stream of another epoch
// says changes anything.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "lockstep/v1/generation.pb.h"
#include "lockstep/v1/worker.pb.h"
#include "parallel/process_grid.h"
#include "runtime/controller/controller.h"
#include "runtime/controller/killer_prompts.h"
#include "runtime/controller/rank_port.h"
#include "runtime/controller/replica.h"
#include "runtime/controller/request_table.h"
#include "runtime/controller/request_validation.h"
#include "runtime/controller/served_load.h"
#include "runtime/controller/serving_state.h"
#include "runtime/engine/engine.h"

namespace lockstep {

struct CoreConfig {
  int num_replicas = 1;
  ProcessGrid grid;
  std::string version;  // empty = not checked
  std::string model_fingerprint;
  std::string tokenizer_fingerprint = "";  // that ranks must have; empty: any
  uint64_t first_epoch = 1;
  // Ranks placed by hand count their epochs themselves: a Hello of a higher one begins it.
  bool adopt_epochs = false;
  engine::EngineConfig engine;  // num_blocks and max_model_len are set when ranks are ready
  int64_t max_model_len = 0;    // as asked; 0 = what the model and the cache allow
  int64_t max_position_embeddings = 0;
  RequestLimits limits;  // max_model_len is set when ranks are ready
  absl::Duration heartbeat_interval;
  absl::Duration lease;
  absl::Duration join_timeout;
  absl::Duration load_timeout;
  // How long requests wait while no replica serves: from the first loss, however many attempts end
  // in another, but for the time in which ranks that have all joined load.
  absl::Duration recovery_window;
  bool keeps_ranks = false;  // after EndAll they look for the next controller
  StepDeadlineOptions step_deadline;
  SpeedPredictor predict_speed = nullptr;  // called once, of all that was served
};

// What happens. Called from within the core's methods; must not call back.
class CoreOutput {
 public:
  virtual ~CoreOutput() = default;
  // The next event of an accepted request's output.
  virtual void Deliver(engine::EngineEvent event) = 0;
  // The core ends the request: unfinished outputs with `reason`, the call with `status`.
  virtual void End(uint64_t number, v1::FinishReason reason, const grpc::Status& status) = 0;
  // Nothing more will be said of this request. Follows every accepted request's last event.
  virtual void Forget(uint64_t number) = 0;
  virtual void Publish(const ServingState::Snapshot& snapshot) = 0;
  virtual void Drained() = 0;
  virtual void Tell(const ControllerEvent& event) = 0;
};

class ControllerCore {
 public:
  ControllerCore(CoreConfig config, CoreOutput& output, absl::Time now);
  ~ControllerCore();

  // --- clients ---
  // UNAVAILABLE, ALREADY_EXISTS, RESOURCE_EXHAUSTED, FAILED_PRECONDITION or INVALID_ARGUMENT: it is
  // not accepted.
  absl::Status Add(engine::EngineRequest request, std::string name, absl::Time now);
  // What Add would say, whatever its name: before another request is ended for its sake.
  absl::Status CheckAdd(const engine::EngineRequest& request, absl::Time now);
  // The client is gone. Unknown numbers are ignored.
  void Cancel(uint64_t number);
  // True when a request of this name was running. Its call ends with status, OK after the finishes.
  bool Abort(const std::string& name, const grpc::Status& status = grpc::Status::OK);
  // A stop string ended this output.
  void FinishOutput(uint64_t number, uint32_t sequence_index);
  // The client has been told all of it, or is gone. Follows every accepted request's end; unknown
  // numbers are ignored.
  void CallEnded(uint64_t number);

  // --- ranks ---
  void RankSaid(std::shared_ptr<RankPort> port, const v1::FromRank& message, absl::Time now);
  void RankClosed(const RankPort& port, const std::string& why, absl::Time now);

  // --- whoever starts ranks ---
  void BeginEpoch(int replica, uint64_t epoch, absl::Time now);
  // No ranks will come for this one any more; others go on with its requests.
  void GiveUpReplica(int replica, const std::string& reason);
  // No ranks will come any more, for none.
  void Fail(const std::string& reason);
  void BeginDrain();
  // Ends every request and tells the ranks to shut down. Nothing is accepted afterwards.
  void EndAll(const std::string& reason);

  // --- time ---
  // Deadlines, leases, plans out, events out. After every batch of the above and at NextWakeup.
  void Advance(absl::Time now);
  absl::Time NextWakeup() const;

  // Every queue that a request could join is full.
  bool QueuesAreFull() const;
  v1::GetStatusResponse Status(absl::Time now) const;
  // Counts everything, for tests.
  void CheckInvariants();

 private:
  using Phase = ServingState::Phase;
  struct Counters {
    uint64_t accepted = 0;
    uint64_t finished = 0;
    uint64_t aborted = 0;
  };

  void DeliverEvents(Replica& replica);
  void MeterToken(RequestTable::Entry& entry, const engine::EngineEvent& event);
  void Finish(uint64_t number, const RequestTable::Entry& entry);
  void EndOne(uint64_t number, v1::FinishReason reason, const grpc::Status& status);
  void EndRequests(v1::FinishReason reason, const grpc::Status& status);
  bool TakesRequests(const Replica& replica) const;
  Replica* ChooseReplica(const engine::EngineRequest& request);
  void MoveRequestsToLivingReplicas();
  void ShareQueues(absl::Time now);
  Replica* QueueToShare(const Replica& to);
  void ForgetRequest(uint64_t number);

  void Greet(std::shared_ptr<RankPort> port, const v1::Hello& hello, absl::Time now);
  absl::Status CheckHello(const v1::Hello& hello);
  absl::Status Join(std::shared_ptr<RankPort> port, const v1::Hello& hello, absl::Time now);
  void TellRefusal(const v1::Hello& hello, const absl::Status& why);
  bool NumericsBind() const;
  absl::Status CheckAgreedNumerics(const v1::Numerics& numerics);
  void WarnOfAnotherGpu(const Replica& replica, const v1::Hello& hello);
  RosterIdentity IdentityOf(int replica, uint64_t epoch) const;
  absl::Status Handle(Replica& replica, int rank, const v1::FromRank& message, absl::Time now);
  void StartRanks(Replica& replica, absl::Time now);
  absl::Status Agree(const RankRoster& ranks, int& at);
  int64_t HostBlocks(const Replica& replica) const;  // of its ranks
  void StartEngine(Replica& replica);
  struct Loss {
    int rank = 0;
    ControllerEvent::Cause cause = ControllerEvent::Cause::kRankVanished;
    std::string why;
    // ABORTED: the ranks may come again. Else how they are refused.
    grpc::StatusCode told_to_ranks = grpc::StatusCode::ABORTED;
  };
  void LoseReplica(Replica& replica, const Loss& loss, absl::Time now);
  void LoseOverdue(absl::Time now);
  void DropReplica(Replica& replica, const grpc::Status& status, const std::string& why);
  void EndKiller(Replica& replica, uint64_t number, const std::string& why);
  void FailNow(const std::string& reason);

  void BeginRecovery(absl::Time now);
  void CreditLoading(const Replica& replica, absl::Time now);
  absl::Time RecoveryEnd() const;
  bool AnyServing() const;
  std::string Progress() const;
  // The phase of those that serve, or that are waited for.
  void TellProgress();
  void SetPhase(Phase phase, std::string detail);
  void EndDrainIfEmpty();
  void EndDrain();
  ControllerEvent EventOf(ControllerEvent::Kind kind) const;
  ControllerEvent EventOf(ControllerEvent::Kind kind, const Replica& replica, int rank,
                          absl::Time now) const;

  CoreConfig config_;
  CoreOutput& output_;
  std::vector<std::unique_ptr<Replica>> replicas_;  // [num_replicas]
  RequestTable requests_;
  KillerPrompts killer_prompts_;
  absl::flat_hash_set<uint64_t> open_calls_;  // of accepted requests, some beyond their end
  Counters counters_;
  LoadMeter meter_;
  absl::Time advanced_at_;  // the last Advance: when tokens count as sent, and killers as ended
  ServingState::Snapshot state_;
  int64_t agreed_kv_blocks_ = 0;  // of every replica; 0 until the first is loaded
  // Of every rank while NumericsBind; set with the blocks.
  std::optional<v1::Numerics> agreed_numerics_;
  bool has_warned_of_gpus_ = false;
  absl::flat_hash_set<std::string> told_refusals_;  // since something began to serve
  bool has_capacity_ = false;  // limits and blocks hold from the first that became ready
  bool drained_ = false;
  bool ended_ = false;
  absl::Time recovery_deadline_ = absl::InfiniteFuture();  // until something serves
  absl::Time judges_from_ = absl::InfinitePast();          // no rank counts as overdue before
};

}  // namespace lockstep
