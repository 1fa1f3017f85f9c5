// What goes into the engine and what comes out, besides plans.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "runtime/engine/step_plan.h"

namespace lockstep::engine {

struct EngineConfig {
  int64_t num_blocks = 0;
  // Of the host's memory, in which cached prefixes stay that num_blocks have no room for.
  int64_t num_host_blocks = 0;
  // That come back from there while a step of few tokens runs.
  int64_t num_prefetched_blocks = 64;
  int block_size = 16;  // tokens
  int max_num_seqs =
      256;  // slots: sequences that run at once; no more than max_batched_tokens are used
  int max_batched_tokens = 2048;  // per step
  // Known tokens of the sequences that one plan opens, unless it opens only one. They travel with
  // the plan, cached or not; writing so many takes about 5 ms.
  int64_t max_opened_tokens = 1 << 18;
  int64_t max_model_len = 0;       // prompt + output tokens of one sequence
  int max_queued_requests = 1024;  // waiting beyond this: RESOURCE_EXHAUSTED
  // pp: micro-batches in flight; a sequence decodes at most once in any pp consecutive steps,
  // unless its last token has already come back.
  int pipeline_depth = 1;
  int max_steps_in_flight = 2;      // pp + 1
  bool enable_prefix_cache = true;  // if not, num_host_blocks are not used
  std::vector<int32_t> eos_token_ids;
  int64_t vocab_size = 0;    // sampled tokens must be below; 0 = unknown
  int max_draft_tokens = 0;  // that an output may guess in a step; 0: it does not
  // All guesses of a step: beyond some rows, a step is no longer bound by reading the weights.
  int max_step_drafts = 32;

  // Blocks that one plan copies to the host: as many as steps compute, and some more.
  int64_t max_offloads() const { return 2 * (max_batched_tokens / block_size) + max_num_seqs; }
};

// With so many losses in a row a request runs alone.
inline constexpr int kLossesOfASuspect = 2;

struct EngineRequest {
  // The controller's own number: unique over all its engines, and of whoever came later greater.
  uint64_t request_id = 0;
  std::string cache_salt;  // tenant; prefixes are shared only under equal salts
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  int num_outputs = 1;              // n
  int32_t priority = 0;             // lower first; ties by request_id
  std::vector<int32_t> prediction;  // what the client believes outputs to be: for guesses
  // By output ([num_outputs], or empty): its tokens so far, of an earlier try, after which it goes
  // on. Those past its end are ignored.
  std::vector<std::vector<int32_t>> emitted;
  absl::Time deadline = absl::InfiniteFuture();
  int num_losses = 0;  // in a row, of replicas while they computed it
};

// kError: no token could be chosen (kNoToken).
enum class FinishReason { kStop, kLength, kAborted, kDeadline, kError };

// One thing that happened to one output of a request, in order.
struct EngineEvent {
  uint64_t request_id = 0;
  uint32_t sequence_index = 0;
  // A new output token (slot is meaningless here). A stop token is delivered too.
  std::optional<SampledToken> token;
  // Instead, first of all: so many tokens of EngineRequest::emitted are its own; `finish` when the
  // last of them ends it.
  uint32_t num_emitted = 0;
  // Next ones, in position order, from position 1; only output 0 has them.
  std::vector<LogprobInfo> prompt_logprobs;
  std::optional<FinishReason> finish;  // after `token` or those emitted, when both are there
  int32_t stop_token_id = -1;          // with kStop by token
  // Of guesses that were not quoted from other outputs: the token was one, and so many of its step
  // came to nothing with it.
  bool was_guessed = false;
  uint32_t num_wrong_guesses = 0;
  uint32_t num_cached_prompt_tokens = 0;  // with token and with finish
  absl::Time admitted_at;                 // with token: when its request first was in a step
};

// A request on its way from one replica's engine to another's, with what it has emitted.
struct UnfinishedRequest {
  struct Output {
    std::vector<int32_t> tokens;  // emitted
    bool finished = false;
    uint32_t num_prompt_logprobs_delivered = 0;
    std::optional<uint32_t> num_cached_prompt_tokens;
    std::optional<int64_t> computed_at_loss;
  };
  EngineRequest given;
  std::vector<Output> outputs;            // [given.num_outputs]
  std::optional<absl::Time> admitted_at;  // it has run: it does not count as queued
};

struct EngineStats {
  int64_t num_waiting = 0;  // outputs that wait for a slot
  int64_t num_running = 0;  // outputs that hold one
  int64_t blocks_total = 0;
  int64_t blocks_in_use = 0;  // owned by sequences
  int64_t blocks_cached = 0;  // free but holding a reusable prefix
  int64_t host_blocks_total = 0;
  int64_t host_blocks_in_use = 0;  // that hold a reusable prefix
  uint64_t blocks_offloaded = 0;
  uint64_t blocks_restored = 0;
  uint64_t num_preemptions = 0;
  uint64_t num_steps = 0;
  int64_t steps_in_flight = 0;
  uint64_t prompt_tokens_computed = 0;  // recomputation included, that of outputs left out
  uint64_t prompt_tokens_cached = 0;    // found when a request was first admitted
  uint64_t tokens_generated = 0;
  uint64_t draft_tokens = 0;           // that steps computed
  uint64_t draft_tokens_accepted = 0;  // of those: generated
};

}  // namespace lockstep::engine
