#include "runtime/engine/simulated_rank.h"

#include <algorithm>
#include <set>
#include <utility>

#include "kernels/base/check.h"

namespace lockstep::engine {

SimulatedRank::SimulatedRank(const SimulatedRankOptions& options, const FakeLanguageModel& model)
    : options_(options), model_(model), slots_(options.max_num_seqs) {
  granted_in_.resize(options_.num_blocks);
  if (!options_.has_contents) return;
  cells_.resize(options_.num_blocks * options_.block_size);
  host_cells_.resize(options_.num_host_blocks * options_.block_size);
}

StepResult SimulatedRank::Execute(const StepPlan& plan, uint64_t last_known_step) {
  ApplyDeltas(plan);
  return ApplyWork(plan, last_known_step);
}

void SimulatedRank::ApplyDeltas(const StepPlan& plan) {
  LS_CHECK_EQ(plan.step_id, last_step_id_ + 1) << "plans must come without holes";
  last_step_id_ = plan.step_id;
  for (uint32_t closed : plan.closed) {
    LS_CHECK(slots_.at(closed).is_open) << "slot " << closed << " is closed twice";
    slots_[closed] = Slot();
  }
  for (const SlotOpen& open : plan.opened) Open(open);
  for (const BlockGrant& grant : plan.grants) {
    Slot& slot = slots_.at(grant.slot);
    LS_CHECK(slot.is_open) << "slot " << grant.slot;
    LS_CHECK(!grant.blocks.empty()) << "slot " << grant.slot;
    for (int32_t block : grant.blocks) {
      LS_CHECK(block >= 0 && block < options_.num_blocks) << "block " << block;
      slot.blocks.push_back(block);
      granted_in_[block] = plan.step_id;
    }
  }
  CopyBlocks(plan);
  for (const SettledTokens& settled : plan.settled) Settle(settled);
}

void SimulatedRank::CopyBlocks(const StepPlan& plan) {
  std::set<int32_t> filled;
  std::set<int32_t> host_blocks;
  for (const BlockCopy& copy : plan.offloaded) {
    CheckRange(copy);
    LS_CHECK(host_blocks.insert(copy.host_block).second) << "host block " << copy.host_block;
    CopyCells(cells_, copy.block, host_cells_, copy.host_block);
  }
  for (const BlockCopy& copy : plan.restored) {
    CheckRange(copy);
    LS_CHECK(filled.insert(copy.block).second) << "block " << copy.block;
    LS_CHECK_EQ(granted_in_[copy.block], plan.step_id) << "block " << copy.block;
    CopyCells(host_cells_, copy.host_block, cells_, copy.block);
  }
  if (plan.prefetched.empty()) return;
  std::set<int32_t> held;
  for (const Slot& slot : slots_) held.insert(slot.blocks.begin(), slot.blocks.end());
  for (const BlockCopy& copy : plan.prefetched) {
    CheckRange(copy);
    LS_CHECK(filled.insert(copy.block).second) << "block " << copy.block;
    LS_CHECK(!held.contains(copy.block)) << "block " << copy.block;
  }
}

void SimulatedRank::CheckRange(const BlockCopy& copy) const {
  LS_CHECK(copy.block >= 0 && copy.block < options_.num_blocks) << "block " << copy.block;
  LS_CHECK(copy.host_block >= 0 && copy.host_block < options_.num_host_blocks)
      << "host block " << copy.host_block;
}

void SimulatedRank::CopyCells(const std::vector<uint64_t>& from, int64_t from_block,
                              std::vector<uint64_t>& to, int64_t to_block) const {
  if (!options_.has_contents) return;
  std::copy_n(from.begin() + from_block * options_.block_size, options_.block_size,
              to.begin() + to_block * options_.block_size);
}

// As late as may be without a later plan: the work must not have needed them.
void SimulatedRank::CopyPrefetched(const StepPlan& plan) {
  for (const BlockCopy& copy : plan.prefetched) {
    CopyCells(host_cells_, copy.host_block, cells_, copy.block);
  }
}

// Copies to the host run beside the step, unless it has granted their blocks: others it must not
// have written to.
void SimulatedRank::CheckOffloaded(const StepPlan& plan) const {
  if (!options_.has_contents) return;
  for (const BlockCopy& copy : plan.offloaded) {
    if (granted_in_[copy.block] == plan.step_id) continue;
    const auto cells = cells_.begin() + int64_t{copy.block} * options_.block_size;
    const auto host = host_cells_.begin() + int64_t{copy.host_block} * options_.block_size;
    LS_CHECK(std::equal(cells, cells + options_.block_size, host)) << "block " << copy.block;
  }
}

void SimulatedRank::Settle(const SettledTokens& settled) {
  Slot& slot = slots_.at(settled.slot);
  const auto num_tokens = static_cast<int64_t>(settled.tokens.size());
  LS_CHECK(num_tokens >= 1 && num_tokens <= std::ssize(slot.drafts) + 1)
      << "slot " << settled.slot << " is told " << num_tokens << " tokens";
  LS_CHECK(!slot.drafts.empty()) << "slot " << settled.slot;
  LS_CHECK(std::equal(settled.tokens.begin(), settled.tokens.end() - 1, slot.drafts.begin()));
  for (const int32_t token : settled.tokens) AddToken(slot, token);
  slot.computed += num_tokens - 1;
  slot.drafts.clear();
}

void SimulatedRank::Open(const SlotOpen& open) {
  Slot& slot = slots_.at(open.slot);
  LS_CHECK(!slot.is_open) << "slot " << open.slot << " is opened twice";
  const auto num_tokens = static_cast<int64_t>(open.tokens.size());
  LS_CHECK(open.num_prompt_tokens >= 1 && open.num_prompt_tokens <= num_tokens);
  LS_CHECK_LT(open.num_computed_tokens, num_tokens) << "the last known token must be computed";
  slot.is_open = true;
  slot.sequence_index = open.sequence_index;
  slot.sampling = open.sampling;
  slot.num_prompt_tokens = open.num_prompt_tokens;
  slot.computed = open.num_computed_tokens;
  if (!options_.has_contents) {
    LS_CHECK(open.sampling.num_logprobs < 0 && open.sampling.num_prompt_logprobs < 0);
    slot.num_tokens = num_tokens;
    return;
  }
  slot.tokens.reserve(open.tokens.size());
  slot.prefixes.reserve(open.tokens.size());
  for (const int32_t token : open.tokens) AddToken(slot, token);
}

void SimulatedRank::AddToken(Slot& slot, int32_t token) {
  ++slot.num_tokens;
  if (!options_.has_contents) return;
  const uint64_t prefix = slot.prefixes.empty() ? FakeLanguageModel::kEmpty : slot.prefixes.back();
  slot.tokens.push_back(token);
  slot.prefixes.push_back(FakeLanguageModel::Extend(prefix, token));
}

StepResult SimulatedRank::ApplyWork(const StepPlan& plan, uint64_t last_known_step) {
  LS_CHECK(!plan.work.empty()) << "step " << plan.step_id;
  for (const SlotWork& work : plan.work) {
    Slot& slot = slots_.at(work.slot);
    LS_CHECK_LT(std::exchange(slot.last_work_step, plan.step_id), plan.step_id)
        << "slot " << work.slot << " works twice";
    CheckWork(slot, work, plan.step_id, last_known_step);
    // Cells that other sequences of this very step write do not count as computed.
    CheckCells(slot, slot.computed);
  }
  int64_t num_sampled = 0;
  for (const SlotWork& work : plan.work) {
    WriteCells(slots_[work.slot], work);
    num_sampled += work.num_sampled();
  }
  LS_CHECK_LE(num_sampled, std::ssize(slots_)) << "step " << plan.step_id;
  CheckOffloaded(plan);
  StepResult result;
  result.step_id = plan.step_id;
  for (const SlotWork& work : plan.work) {
    Slot& slot = slots_[work.slot];
    CheckCells(slot, slot.computed);  // nobody wrote over them
    AddPromptLogprobs(slot, work, result);
    if (work.sample) {
      slot.last_sample_step = plan.step_id;
      SampleNext(slot, work, result);
    }
  }
  CopyPrefetched(plan);
  return result;
}

void SimulatedRank::WriteCells(Slot& slot, const SlotWork& work) {
  if (!options_.has_contents) {
    slot.computed += work.num_tokens;
    return;
  }
  for (uint32_t i = 0; i < work.num_tokens; ++i, ++slot.computed) {
    cells_[CellOf(slot, slot.computed)] = slot.prefixes[slot.computed];
  }
  uint64_t prefix = slot.prefixes[slot.computed - 1];
  int64_t position = slot.computed;
  for (const int32_t draft : work.drafts) {
    prefix = FakeLanguageModel::Extend(prefix, draft);
    cells_[CellOf(slot, position++)] = prefix;
  }
}

void SimulatedRank::CheckWork(const Slot& slot, const SlotWork& work, uint64_t step_id,
                              uint64_t last_known_step) const {
  LS_CHECK(slot.is_open) << "slot " << work.slot;
  LS_CHECK_GE(work.num_tokens, 1u) << "slot " << work.slot;
  LS_CHECK(slot.drafts.empty()) << "slot " << work.slot << " is not told its tokens";
  const int64_t end = slot.computed + work.num_tokens;
  const int64_t known = slot.num_tokens;
  const int64_t num_drafts = std::ssize(work.drafts);
  LS_CHECK_LE(end, known) << "slot " << work.slot << " has no such token";
  LS_CHECK_EQ(work.sample, end == known) << "slot " << work.slot;
  LS_CHECK(num_drafts == 0 || (options_.has_contents && work.sample && work.num_tokens == 1))
      << "slot " << work.slot;
  LS_CHECK_LT(known + num_drafts, options_.max_model_len + (work.sample ? 0 : 1))
      << "slot " << work.slot;
  LS_CHECK_LE(end + num_drafts, static_cast<int64_t>(slot.blocks.size()) * options_.block_size)
      << "slot " << work.slot << " lacks blocks";
  // Stage 0 must be able to have the token that the entry starts from.
  const bool is_back = slot.last_sample_step <= last_known_step;
  LS_CHECK(is_back ||
           step_id - slot.last_sample_step >= static_cast<uint64_t>(options_.pipeline_depth))
      << "slot " << work.slot << " decodes at step " << step_id << " after step "
      << slot.last_sample_step;
}

void SimulatedRank::CheckCells(const Slot& slot, int64_t end) const {
  if (!options_.has_contents) return;
  for (int64_t position = 0; position < end; ++position) {
    LS_CHECK_EQ(cells_[CellOf(slot, position)], slot.prefixes[position])
        << "position " << position << " of output " << slot.sequence_index << " reads block "
        << slot.blocks[position / options_.block_size];
  }
}

int64_t SimulatedRank::CellOf(const Slot& slot, int64_t position) const {
  return int64_t{slot.blocks.at(position / options_.block_size)} * options_.block_size +
         position % options_.block_size;
}

void SimulatedRank::SampleNext(Slot& slot, const SlotWork& work, StepResult& result) {
  if (!options_.has_contents) {
    result.sampled.push_back({work.slot, 0, std::nullopt});
    AddToken(slot, 0);
    return;
  }
  uint64_t prefix = slot.prefixes.back();
  int64_t num_known = slot.num_tokens;
  result.sampled.push_back(SampleAfter(prefix, slot, work.slot, num_known));
  if (work.drafts.empty()) {
    AddToken(slot, result.sampled.back().token);
    return;
  }
  slot.drafts = work.drafts;
  for (const int32_t draft : work.drafts) {
    prefix = FakeLanguageModel::Extend(prefix, draft);
    result.sampled.push_back(SampleAfter(prefix, slot, work.slot, ++num_known));
  }
}

SampledToken SimulatedRank::SampleAfter(uint64_t prefix, const Slot& slot, uint32_t number,
                                        int64_t num_known) const {
  SampledToken sampled{number, 0, std::nullopt};
  sampled.token =
      model_.Sample(prefix, slot.sampling, slot.sequence_index, num_known - slot.num_prompt_tokens);
  if (slot.sampling.num_logprobs >= 0) {
    sampled.logprobs = model_.Logprob(prefix, sampled.token, slot.sampling.num_logprobs);
  }
  return sampled;
}

void SimulatedRank::AddPromptLogprobs(const Slot& slot, const SlotWork& work,
                                      StepResult& result) const {
  const int num_top = slot.sampling.num_prompt_logprobs;
  if (num_top < 0) return;
  const int64_t first = slot.computed - work.num_tokens + 1;
  const int64_t end = std::min(slot.computed + 1, slot.num_prompt_tokens);
  if (first >= end) return;
  PromptLogprobs logprobs{work.slot, static_cast<uint32_t>(first), {}};
  for (int64_t i = first; i < end; ++i) {
    logprobs.logprobs.push_back(model_.Logprob(slot.prefixes[i - 1], slot.tokens[i], num_top));
  }
  result.prompt_logprobs.push_back(std::move(logprobs));
}

}  // namespace lockstep::engine
