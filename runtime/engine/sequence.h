// A request and its outputs as the engine keeps them. Plain data and what can be derived from it;
// the Scheduler moves sequences between the queues, the Engine appends their tokens.
//
// Two lengths tell everything: `computed` tokens have (or will have, in plans already issued) their
// K/V in the blocks; length() tokens are known or are being sampled right now. The next work of any
// sequence is the gap between the two.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/time/time.h"
#include "runtime/engine/block_pool.h"
#include "runtime/engine/drafter.h"
#include "runtime/engine/engine_types.h"
#include "runtime/engine/prefix_cache.h"

namespace lockstep::engine {

struct Request;

struct Sequence {
  // kGated: its sibling computes their prompt first, so that this one finds it in the prefix cache.
  enum class State { kGated, kWaiting, kRunning, kFinished };

  Sequence(Request& request, uint32_t index, BlockPool& pool);

  // Known: prompt, then output. Valid until the next Append.
  std::span<const int32_t> tokens() const { return own_tokens_.empty() ? prompt() : own_tokens_; }
  void Append(int32_t token) {
    if (own_tokens_.empty()) CopyPrompt();
    own_tokens_.push_back(token);
  }
  int64_t length() const { return static_cast<int64_t>(tokens().size()) + samples_in_flight; }
  int64_t num_output_tokens() const;
  int64_t uncomputed() const { return length() - computed; }
  // Its last token is known or on its way, and there is room for another.
  bool can_extend() const { return length() < max_length; }
  DraftSources DraftFrom(const OutputHistory& history) const;

  // Its prompt logprobs are still wanted, so no prompt token may be skipped.
  bool wants_prompt_logprobs() const;
  bool IsStopToken(int32_t token) const;
  // To a plan that gives it its slot.
  SlotOpen Open() const;
  int64_t num_opened_tokens() const;  // what that carries; a logit bias is as long as a token
  // Why it ends with its newest token, if it does.
  std::optional<FinishReason> FinishedBy(int32_t newest_token) const;

  Request& request;
  const uint32_t index;
  int64_t max_length = 0;  // prompt and output tokens
  State state = State::kWaiting;
  int64_t num_waiting_tokens = 0;  // known ones, when it began to wait

  // While it runs.
  int32_t slot = -1;
  BlockTable blocks;
  int64_t num_blocks_granted = 0;  // the first of `blocks` that the ranks know
  int64_t computed = 0;
  uint64_t last_sample_step = 0;  // the newest step that samples for it
  int num_unsettled = 0;          // its last tokens, if the ranks are to be told
  int64_t num_blocks_named = 0;   // the first of `blocks` that the prefix cache has seen
  PrefixCache::Node prefix = PrefixCache::kRoot;  // of the last of those

  // Guesses its next tokens; null: it is not to.
  std::unique_ptr<Drafter> drafter;
  bool has_drafts_in_flight = false;

  // Steps outlive a stay in the running list: a preempted or finished sequence may still have some
  // in flight.
  int samples_in_flight = 0;
  int steps_in_flight = 0;

  // How far replicas computed it that were lost then; until one has come further.
  std::optional<int64_t> computed_at_loss;

  uint32_t num_prompt_logprobs_delivered = 0;
  std::optional<uint32_t> num_cached_prompt_tokens;  // at its first admission

 private:
  std::span<const int32_t> prompt() const;
  void CopyPrompt();

  // Empty until there is output: those that wait share the request's prompt.
  std::vector<int32_t> own_tokens_;
};

struct Request {
  explicit Request(EngineRequest request)
      : given(std::move(request)), num_losses(given.num_losses) {}

  const EngineRequest given;
  std::vector<int32_t> stop_tokens;  // EOS included unless ignored
  std::vector<std::unique_ptr<Sequence>> sequences;
  int num_unfinished = 0;
  int num_gated = 0;
  int steps_in_flight = 0;                // the sum over its sequences
  std::optional<absl::Time> admitted_at;  // the first time; no longer counts as queued
  int num_losses;                         // in a row, of replicas while they computed it
};

// Who goes first: priority, then arrival, wherever that was, then output index. A preempted
// sequence keeps its place, so it returns to the front; so does one that comes from another
// replica.
struct GoesBefore {
  static auto Rank(const Sequence& s) {
    return std::make_tuple(s.request.given.priority, s.request.given.request_id, s.index);
  }
  bool operator()(const Sequence* a, const Sequence* b) const { return Rank(*a) < Rank(*b); }
};

}  // namespace lockstep::engine
