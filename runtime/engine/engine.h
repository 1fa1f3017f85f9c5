// The engine: which requests run, which tokens each step computes, which KV blocks they use. A
// deterministic state machine: no clock, no I/O, no threads; time comes in as an argument. Driven
// by the controller's event loop (or a test, a simulation, the planner):  Add / Abort / Finish ->
// Schedule -> (ranks, or a SimulatedExecutor, run it) -> Commit -> events out.
//
// Invariants: every accepted request ends with exactly one finish event per output; a block is
// owned by the pool, by sequences or by the prefix cache, never lost; plans run ahead of results by
// at most max_steps_in_flight.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/engine/engine_types.h"
#include "runtime/engine/scheduler.h"
#include "runtime/engine/sequence.h"
#include "runtime/engine/step_plan.h"

namespace lockstep::engine {

// RESOURCE_EXHAUSTED: what a request hears that would join so many.
absl::Status QueueIsFull(int64_t num_requests);

class Engine {
 public:
  explicit Engine(const EngineConfig& config);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // RESOURCE_EXHAUSTED: the queue is full. INVALID_ARGUMENT: it can never run (empty prompt, longer
  // than max_model_len or than the whole cache, a token out of the vocabulary), naming the value
  // and the limit.
  absl::Status Add(EngineRequest request);
  absl::Status CheckAdd(const EngineRequest& request) const;  // what Add would say
  // Ends all outputs of the request; its blocks are free before the next Schedule. No event
  // follows. Unknown ids are ignored.
  void Abort(uint64_t request_id);
  // Ends one output (a stop string was found). No event follows for it.
  void FinishOutput(uint64_t request_id, uint32_t sequence_index);

  // The next step, or nullopt when there is nothing to do now (idle, or max_steps_in_flight
  // reached, or every runnable sequence is still inside the pipeline). Deadlines that passed are
  // turned into events by TakeEvents.
  std::optional<StepPlan> Schedule(absl::Time now);
  // Results arrive in step order. INTERNAL when the result does not fit the oldest plan in flight
  // (then nothing changed).
  absl::Status Commit(const StepResult& result);
  std::vector<EngineEvent> TakeEvents();  // what happened since the last call

  // The replica was lost (or replaced): forgets steps in flight, slots and cached blocks; every
  // unfinished sequence waits again with the tokens it has. step_id starts at 1. Returns the
  // request that must have killed the ranks, if one did (see engine_losses.cc): it is for the
  // caller to abort.
  std::optional<uint64_t> ResetReplica();
  // EngineConfig's, of new ranks; after it.
  void SetHostBlocks(int64_t num_host_blocks, int64_t num_prefetched_blocks);

  // After ResetReplica: hands over every unfinished request, oldest first; nothing is left. Events
  // must have been taken.
  std::vector<UnfinishedRequest> Evacuate();
  // Continues what another engine of the same limits gave up, however full the queue is.
  void Adopt(UnfinishedRequest unfinished);
  // The first in line that never ran, if who waits finds no room here; else null.
  const EngineRequest* StrandedRequest() const;
  // Whether it would find room with all that wait here before it.
  bool HasRoomFor(const EngineRequest& request) const;
  // Hands over a request that never ran. Events must have been taken.
  UnfinishedRequest Release(uint64_t request_id);
  // Deadlines that passed become events; Schedule does it too.
  void ExpireDeadlines(absl::Time now);

  // How many tokens of this prompt need no computing here now.
  int64_t CachedPrefixTokens(const EngineRequest& request) const;
  // Known tokens that wait to be computed, but for outputs whose sibling computes their prompt:
  // O(number of slots).
  int64_t NumUncomputedTokens() const;

  // When Schedule could have something to do without a new event (the earliest deadline);
  // InfiniteFuture if none.
  absl::Time NextWakeup() const;
  EngineStats Stats() const;
  void CheckInvariants() const;  // counts everything: O(num_blocks), for tests
  // RESOURCE_EXHAUSTED when Add would refuse whatever comes.
  absl::Status CheckQueue() const;
  // Of an unfinished request.
  const EngineRequest& given(uint64_t request_id) const { return requests_.at(request_id)->given; }
  int64_t num_requests() const { return static_cast<int64_t>(requests_.size()); }  // unfinished
  bool Idle() const;  // no waiting or running sequence, nothing in flight

 private:
  struct StepInFlight {
    uint64_t step_id = 0;
    std::vector<Scheduler::Entry> entries;
  };

  // That one output can become, prompt included.
  int64_t MaxLength(const EngineRequest& request) const;
  absl::Status CheckRequest(const EngineRequest& request) const;
  absl::Status CheckTokens(const std::vector<int32_t>& tokens, absl::string_view whose) const;
  absl::Status CheckResult(const StepResult& result) const;
  absl::Status CheckSampled(const SampledToken& sampled, uint32_t slot) const;
  absl::Status CheckPromptLogprobs(const PromptLogprobs& given) const;
  const Scheduler::Entry* EntryOfSlot(uint32_t slot) const;

  void CommitPromptLogprobs(const PromptLogprobs& given);
  EngineEvent& AddEvent(const Sequence& sequence);
  void Append(Sequence& sequence, int32_t token, EngineEvent& event);
  void CommitEmitted(Sequence& sequence, const std::vector<int32_t>& tokens);
  void CommitChosen(const Scheduler::Entry& entry, std::span<const SampledToken> chosen);
  void CommitToken(Sequence& sequence, const SampledToken& sampled);
  void EndIfFinished(Sequence& sequence, const EngineEvent& event);
  std::unique_ptr<Request> MakeRequest(EngineRequest given);
  static UnfinishedRequest Unfinished(const Request& request);
  Request& Insert(std::unique_ptr<Request> request);
  void Retire(Request& request);
  std::optional<uint64_t> CountLoss();
  void Suspect(Request& request);
  void NoteSurvived(Sequence& sequence, int64_t computed);
  Request* FirstSuspect() const;
  bool AnyInFlightBut(const Request& request) const;
  void ForgetEvents(uint64_t request_id, std::optional<uint32_t> sequence_index);

  const EngineConfig config_;
  Scheduler scheduler_;  // owns the block pool: outlives the sequences
  absl::flat_hash_map<uint64_t, std::unique_ptr<Request>> requests_;  // unfinished
  // Finished, but steps in flight still name their sequences.
  absl::flat_hash_map<Request*, std::unique_ptr<Request>> retired_;
  std::map<std::pair<absl::Time, uint64_t>, Request*> deadlines_;  // by time, then number
  std::map<std::pair<int32_t, uint64_t>, Request*> suspects_;      // by priority, then number
  std::deque<StepInFlight> in_flight_;
  std::vector<EngineEvent> events_;

  uint64_t next_step_id_ = 1;
  int64_t num_queued_requests_ = 0;  // never admitted yet
  uint64_t num_steps_ = 0;
  uint64_t tokens_generated_ = 0;
  uint64_t draft_tokens_accepted_ = 0;
};

}  // namespace lockstep::engine
