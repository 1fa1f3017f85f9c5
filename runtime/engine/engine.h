// The engine: which requests run, which tokens each step computes, which KV blocks they use. A deterministic state machine: no
// clock, no I/O, no threads; time comes in as an argument. Driven by the controller's event loop (or a test, a simulation,
// the planner):  Add / Abort / Finish -> Schedule -> (a StepExecutor runs it) -> Commit -> events out.
//
// Invariants: every accepted request ends with exactly one finish event per output; a block is owned by the pool, by sequences or
// by the prefix cache, never lost; plans run ahead of results by at most max_steps_in_flight.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/engine/step_plan.h"

namespace lockstep::engine {

struct EngineConfig {
  int64_t num_blocks = 0;
  int block_size = 16;  // tokens
  int max_num_seqs = 256;           // slots: sequences that run at once
  int max_batched_tokens = 2048;    // per step
  int64_t max_model_len = 0;        // prompt + output tokens of one sequence
  int max_queued_requests = 1024;   // waiting beyond this: RESOURCE_EXHAUSTED
  int pipeline_depth = 1;           // pp: micro-batches in flight; a sequence decodes at most once in any pp consecutive steps
  int max_steps_in_flight = 2;      // pp + 1
  bool enable_prefix_cache = true;
  std::vector<int32_t> eos_token_ids;
};

struct EngineRequest {
  uint64_t request_id = 0;  // the controller's own number, unique
  std::string cache_salt;   // tenant; prefixes are shared only under equal salts
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  int num_outputs = 1;  // n
  int32_t priority = 0;  // lower first; ties by arrival
  absl::Time deadline = absl::InfiniteFuture();
};

enum class FinishReason { kStop, kLength, kAborted, kDeadline, kError };

// One thing that happened to one output of a request, in order.
struct EngineEvent {
  uint64_t request_id = 0;
  uint32_t sequence_index = 0;
  std::optional<SampledToken> token;  // a new output token (slot is meaningless here). A stop token is delivered too.
  std::vector<LogprobInfo> prompt_logprobs;  // next ones, in position order, from position 1
  std::optional<FinishReason> finish;        // after `token`, when both are there
  int32_t stop_token_id = -1;                // with kStop by token
  uint32_t num_cached_prompt_tokens = 0;     // with finish
};

struct EngineStats {
  int64_t num_waiting = 0;
  int64_t num_running = 0;
  int64_t blocks_total = 0;
  int64_t blocks_in_use = 0;    // owned by sequences
  int64_t blocks_cached = 0;    // free but holding a reusable prefix
  uint64_t num_preemptions = 0;
  uint64_t num_steps = 0;
  int64_t steps_in_flight = 0;
  uint64_t prompt_tokens_computed = 0;
  uint64_t prompt_tokens_cached = 0;
  uint64_t tokens_generated = 0;
};

class Engine {
 public:
  explicit Engine(const EngineConfig& config);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // RESOURCE_EXHAUSTED: the queue is full. INVALID_ARGUMENT: it can never run (empty prompt, longer than max_model_len or
  // than the whole cache), naming the value and the limit.
  absl::Status Add(EngineRequest request, absl::Time now);
  // Ends all outputs of the request; its blocks are free before the next Schedule. No event follows. Unknown ids are ignored.
  void Abort(uint64_t request_id);
  // Ends one output (a stop string was found). No event follows for it.
  void FinishOutput(uint64_t request_id, uint32_t sequence_index);

  // The next step, or nullopt when there is nothing to do now (idle, or max_steps_in_flight reached, or every runnable sequence is
  // still inside the pipeline). Deadlines that passed are turned into events by TakeEvents.
  std::optional<StepPlan> Schedule(absl::Time now);
  // Results arrive in step order. INTERNAL when the result does not fit the oldest plan in flight (then nothing changed).
  absl::Status Commit(const StepResult& result, absl::Time now);
  // What happened since the last call.
  std::vector<EngineEvent> TakeEvents();

  // The replica was lost (or replaced): forgets steps in flight, slots and cached blocks; every unfinished sequence waits
  // again with the tokens it has. step_id starts at 1.
  void ResetReplica();

  // When Schedule could have something to do without a new event (the earliest deadline); InfiniteFuture if none.
  absl::Time NextWakeup() const;
  EngineStats Stats() const;
  bool Idle() const;  // no waiting or running sequence, nothing in flight

 private:
  // Added by the implementation: the two queues, the block pool, the prefix cache and the plans in flight.
};

}  // namespace lockstep::engine
