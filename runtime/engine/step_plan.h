// What the controller tells every rank of a replica to do in one step, and what comes back. Plans
// are deltas: a rank keeps each slot's tokens, block table, computed length and sampling state, so
// a decode entry is only a slot number.
//
// There is no prefill phase and no decode phase: an entry says "compute the next num_tokens known
// tokens of this slot". A slot's known tokens are those given when it was opened and those sampled
// since. When the entry reaches the last known token, the step samples the next one.
//
// An entry may carry drafts, guesses of what comes after the last known token: they are computed,
// too, and a token is chosen after the last known one and after each draft. Those up to the first
// that differs from its draft are the sequence's; which they are the ranks are told by a later
// plan (settled), before they compute more of the slot.
//
// Order inside a step: closed, opened, granted, offloaded, restored, settled, work (chunks first,
// then decodes); prefetched at any time after offloaded and before a later plan that has to do with
// those blocks. Ranks execute plans strictly in step_id order, therefore blocks may be granted
// again as soon as the plan that no longer uses them is later than all plans that do.
//
// What a rank may rely on:
// - A plan has at least one work entry, and at most one per slot. The grants (of this plan and
// earlier ones) cover it, drafts included. It samples no more tokens than there are slots.
// - The token that a decode starts from may still be on its way when the plan arrives. The step
// that samples it is then at least
//   pipeline_depth steps older, or its result has already reached the controller (few sequences:
//   fewer steps in flight than stages). So stage 0 waits for the samples of the step that the slot
//   depends on, not for those of step_id - pipeline_depth.
// - Blocks that are restored are granted by the same plan. Those that are prefetched no open slot
//   has; a later plan that grants them may read them. Those that are offloaded were written by
//   earlier plans, and are written to by none that has not granted them again or fills them from
//   the host, as this very plan may do.
// - A slot may be closed while steps that sample for it are in flight, and opened again, by the
// same plan even, for another
//   sequence. Samples belong to the sequence that held the slot in their own step; those of a
//   closed sequence are dropped.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/llama/block_copy.h"
#include "model/sampling/sampling_params.h"

namespace lockstep::engine {

struct SlotOpen {
  uint32_t slot = 0;
  uint32_t sequence_index = 0;  // which of the request's n outputs; part of the random numbers' key
  SamplingParams sampling;
  std::vector<int32_t>
      tokens;  // prompt, then what was already emitted (after preemption or a restart)
  uint32_t num_prompt_tokens = 0;  // the first of `tokens` that are prompt; >= 1
  uint32_t num_computed_tokens =
      0;  // whose K/V is already in the granted blocks (cached prefix); < tokens.size()
  bool operator==(const SlotOpen&) const = default;
};

struct BlockGrant {
  uint32_t slot = 0;
  std::vector<int32_t> blocks;  // appended to the slot's block table
  bool operator==(const BlockGrant&) const = default;
};

struct SlotWork {
  uint32_t slot = 0;
  uint32_t num_tokens = 1;  // known ones; 1 and sample = a decode
  bool sample = true;       // the entry ends at the last known token: choose the next
  // After those, with a token chosen after each; only of decodes.
  std::vector<int32_t> drafts = {};
  int64_t num_rows() const { return num_tokens + static_cast<int64_t>(drafts.size()); }
  int64_t num_sampled() const { return sample ? 1 + static_cast<int64_t>(drafts.size()) : 0; }
  bool operator==(const SlotWork&) const = default;
};

// What a slot's last entry, which had drafts, has chosen: some of the drafts, from the first on,
// and one token more.
struct SettledTokens {
  uint32_t slot = 0;
  std::vector<int32_t> tokens;
  bool operator==(const SettledTokens&) const = default;
};

struct StepPlan {
  uint64_t step_id = 0;  // 1, 2, 3, ... without holes in an epoch
  std::vector<uint32_t> closed;
  std::vector<SlotOpen> opened;
  std::vector<BlockGrant> grants;
  std::vector<BlockCopy> offloaded;   // to the host; no block of its twice
  std::vector<BlockCopy> restored;    // from the host, after that; no block twice
  std::vector<BlockCopy> prefetched;  // likewise, beside the work, which does not need them
  std::vector<SettledTokens> settled;
  std::vector<SlotWork> work;
  bool operator==(const StepPlan&) const = default;
};

struct SampledToken {
  uint32_t slot = 0;
  int32_t token = 0;  // kNoToken: its output ends with an error
  std::optional<LogprobInfo> logprobs;
  bool operator==(const SampledToken&) const = default;
};

// Logprobs of prompt tokens [first_position, first_position + logprobs.size()) given what precedes
// each.
struct PromptLogprobs {
  uint32_t slot = 0;
  uint32_t first_position = 0;
  std::vector<LogprobInfo> logprobs;
  bool operator==(const PromptLogprobs&) const = default;
};

struct StepResult {
  uint64_t step_id = 0;
  std::vector<SampledToken> sampled;  // by work entry, num_sampled of each, in the plan's order
  std::vector<PromptLogprobs> prompt_logprobs;
  bool operator==(const StepResult&) const = default;
};

}  // namespace lockstep::engine
