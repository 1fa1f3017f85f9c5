// What a rank does with plans, without a model: slots, block tables and a KV cache whose cells hold
// the name of the prefix that was written there instead of keys and values. Every cell a step reads
// is CHECKed to hold exactly the prefix that the sequence has there, so wrong sharing, reuse while
// in use and missing grants stop a test at the step where they happen. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/engine/fake_language_model.h"
#include "runtime/engine/step_plan.h"

namespace lockstep::engine {

struct SimulatedRankOptions {
  int64_t num_blocks = 0;
  int64_t num_host_blocks = 0;
  int block_size = 16;
  int max_num_seqs = 256;
  int64_t max_model_len = 0;
  int pipeline_depth = 1;
  // Tokens and cells are told apart and checked, at a cost in proportion to the context. Otherwise
  // every sampled token is 0, and there are neither drafts nor logprobs.
  bool has_contents = true;
};

class SimulatedRank {
 public:
  struct Slot {
    bool is_open = false;
    uint32_t sequence_index = 0;
    SamplingParams sampling;
    int64_t num_tokens = 0;          // known, and those sampled by steps in flight
    std::vector<int32_t> tokens;     // [num_tokens]
    std::vector<uint64_t> prefixes;  // prefixes[i] names tokens[0, i]
    int64_t num_prompt_tokens = 0;
    int64_t computed = 0;
    std::vector<int32_t> drafts;  // of its last entry, until a plan tells what came of them
    std::vector<int32_t> blocks;
    uint64_t last_work_step = 0;
    uint64_t last_sample_step = 0;
  };

  // The model must outlive the rank.
  SimulatedRank(const SimulatedRankOptions& options, const FakeLanguageModel& model);

  // Plans come in the order of their step_id, from 1. last_known_step: the newest step whose result
  // the controller has.
  StepResult Execute(const StepPlan& plan, uint64_t last_known_step);

  const Slot& slot(uint32_t slot) const { return slots_.at(slot); }
  // Before the plan's work, closed, opened and granted are applied; Execute does both.
  void ApplyDeltas(const StepPlan& plan);
  StepResult ApplyWork(const StepPlan& plan, uint64_t last_known_step);

  int64_t CellOf(const Slot& slot, int64_t position) const;  // block * block_size + offset

 private:
  void Open(const SlotOpen& open);
  void AddToken(Slot& slot, int32_t token);
  void CheckWork(const Slot& slot, const SlotWork& work, uint64_t step_id,
                 uint64_t last_known_step) const;
  void CheckCells(const Slot& slot, int64_t end) const;
  void CopyBlocks(const StepPlan& plan);
  void CopyPrefetched(const StepPlan& plan);
  void CheckRange(const BlockCopy& copy) const;
  void CopyCells(const std::vector<uint64_t>& from, int64_t from_block, std::vector<uint64_t>& to,
                 int64_t to_block) const;
  void CheckOffloaded(const StepPlan& plan) const;
  void Settle(const SettledTokens& settled);
  void WriteCells(Slot& slot, const SlotWork& work);
  void SampleNext(Slot& slot, const SlotWork& work, StepResult& result);
  SampledToken SampleAfter(uint64_t prefix, const Slot& slot, uint32_t number,
                           int64_t num_known) const;
  void AddPromptLogprobs(const Slot& slot, const SlotWork& work, StepResult& result) const;

  const SimulatedRankOptions options_;
  const FakeLanguageModel& model_;
  uint64_t last_step_id_ = 0;
  std::vector<Slot> slots_;
  std::vector<uint64_t> cells_;  // [num_blocks * block_size], the name of the prefix written there
  std::vector<uint64_t> host_cells_;  // [num_host_blocks * block_size]
  std::vector<uint64_t> granted_in_;  // [num_blocks], the step that granted it last
};

}  // namespace lockstep::engine
