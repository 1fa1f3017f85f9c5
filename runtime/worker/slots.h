// A rank's memory between steps: per slot the known tokens, the block table and how far it is
// computed. Applies plans, which are deltas, and turns each into the flat batch of the step, in
// which block tables are deltas, too: a slot's table is the row of its number.
// After drafts, a slot knows no more than before until a plan tells (settled).
//
// Plans come from a peer: everything in them is checked, and an error leaves the table unusable
// (the rank ends). Known tokens count also those that an earlier step samples and that have not
// been appended yet; only the first stage, which needs their ids, must wait for them
// (MissesTokens), unless a device has them: the one that chose them in the step before, or that of
// a first stage which they return to (TokenReturn). Used by the step loop's thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "model/grammar/constraint_cache.h"
#include "model/llama/step_batch.h"
#include "model/sampling/vocab_sampler.h"
#include "parallel/partition.h"
#include "runtime/engine/step_plan.h"

namespace lockstep {

struct SlotTableOptions {
  BatchLimits limits;
  int64_t num_blocks = 0;
  int64_t vocab_size = 0;
  bool is_first_stage = true;  // fills token_ids
  bool is_last_stage = true;   // wants logits
  Range vocab;                 // last stage: this rank's part, for penalties
  // Last stage: what outputs may be constrained by; null: they may not. Must outlive the table.
  grammar::ConstraintCache* constraints = nullptr;
  // First stage of several: sampled tokens are never appended, but lie in a table by slot.
  bool has_token_table = false;
};

// A sequence's stay in a slot; the slot's next tenant has another generation.
struct SlotRef {
  uint32_t slot = 0;
  uint64_t generation = 0;
  bool operator==(const SlotRef&) const = default;
};

// What one of batch().logits_rows is for.
struct LogitsUse {
  SlotRef slot;
  uint64_t position = 0;       // of the token to choose, or of the prompt token to judge
  int32_t prompt_target = -1;  // that prompt token; -1: choose
  int32_t source = -1;         // place of the slot's last sampled token among its step's; -1: none
  int32_t num_drafts = 0;      // of the slot's, that come before it
};

class SlotTable {
 public:
  explicit SlotTable(const SlotTableOptions& options);

  // The plan's changes, then the step's batch. INVALID_ARGUMENT names step, slot and value.
  absl::Status Apply(const engine::StepPlan& plan);

  // ---- the step applied last ----
  // token_ids: zeros but on the first stage.
  const StepBatch& batch() const { return batch_; }
  // Of tokens chosen, in the order of their rows: who keeps them. Those after drafts are nobody's
  // (generation 0) until a plan tells which of them count.
  std::span<const SlotRef> sampled() const { return sampled_; }
  // Last stage: one per batch().logits_rows.
  std::span<const LogitsUse> logits_uses() const { return logits_uses_; }
  // Last stage. Valid until the next Apply.
  LogitsRow RowOf(const LogitsUse& use) const;
  // First stage: does the batch begin with a token that was sampled but not appended yet?
  bool MissesTokens() const;
  // Last stage: must the host know last tokens to say what may be chosen next?
  bool NeedsLastTokens() const;
  // First stage: completes batch().token_ids. Tokens that are missing get batch().token_sources:
  // their slots where there is a table; else they must be of the step before.
  void FillTokenIds();
  // With a table: the newest step that sampled a token the batch begins with; 0: none.
  uint64_t NewestSource() const;

  // First and last stage: a sampled token arrived. Ignored when its sequence has left the slot.
  void AppendSampled(const SlotRef& ref, int32_t token);
  uint64_t last_step() const { return last_step_; }
  int64_t num_slots() const { return options_.limits.max_num_seqs; }
  int64_t block_size() const { return options_.limits.block_size; }

 private:
  struct Slot {
    bool open = false;
    uint64_t generation = 0;
    uint32_t sequence_index = 0;
    SamplingParams sampling;
    std::vector<int32_t> tokens;  // first and last stage
    int64_t num_prompt_tokens = 0;
    int64_t num_known_tokens = 0;  // tokens, and sampled ones on their way
    int64_t num_computed_tokens = 0;
    int32_t source = -1;          // LogitsUse; with a table: the slot's number
    uint64_t sampled_step = 0;    // the last one that sampled; 0: none
    std::vector<int32_t> drafts;  // of the last entry, until a plan tells what came of them
    int32_t last_token = -1;      // the last known one, if a plan has told it; else -1
    std::vector<int32_t> blocks;
    TokenHistory history;
    std::unique_ptr<grammar::OutputMatcher> matcher;  // last stage, of constrained outputs
  };
  struct Entry {
    uint32_t slot = 0;
    int64_t first_position = 0;
    int64_t num_tokens = 0;  // with drafts
    int64_t num_drafts = 0;
    int32_t source = -1;  // these of the slot, before the step
    int32_t last_token = -1;
    uint64_t sampled_step = 0;
    int64_t end_of_known() const { return first_position + num_tokens - num_drafts; }
  };

  absl::Status Close(uint32_t slot);
  absl::Status Open(const engine::SlotOpen& open);
  absl::Status CheckOpen(const engine::SlotOpen& open) const;
  absl::Status OpenOutput(const engine::SlotOpen& open, Slot& slot);
  void AddOutput(Slot& slot, int32_t token);
  absl::Status Grant(const engine::BlockGrant& grant);
  absl::Status CheckGrant(const engine::BlockGrant& grant) const;
  absl::Status Settle(const engine::SettledTokens& settled);
  absl::Status CheckSettled(const engine::SettledTokens& settled) const;
  absl::Status CheckTokens(uint32_t slot, std::span<const int32_t> tokens) const;
  absl::Status AddWork(const engine::SlotWork& work);
  absl::Status CheckDrafts(const engine::SlotWork& work) const;
  absl::Status CheckWork(const engine::SlotWork& work) const;
  void AddTokens(const Slot& slot, const Entry& entry);
  void AddLogits(const Slot& slot, const Entry& entry, bool sample);
  void AddToken(Slot& slot, int32_t token);
  void AddKnownTokens(const Entry& entry);
  void BeginBatch();
  absl::Status Invalid(uint32_t slot, const std::string& problem) const;

  SlotTableOptions options_;
  std::vector<Slot> slots_;
  uint64_t last_step_ = 0;
  uint64_t last_generation_ = 0;
  std::vector<uint64_t> block_stamps_;  // [num_blocks], to find a block twice in one table
  uint64_t block_stamp_ = 0;
  StepBatch batch_;
  std::vector<Entry> entries_;
  std::vector<uint64_t> slot_steps_;  // [num_slots], the last step with an entry of the slot
  std::vector<SlotRef> sampled_;
  std::vector<LogitsUse> logits_uses_;
};

}  // namespace lockstep
