#include "runtime/worker/slots.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace lockstep {
namespace {

constexpr uint64_t kNobody = 0;  // the first tenant of a slot is generation 1

}  // namespace

SlotTable::SlotTable(const SlotTableOptions& options)
    : options_(options),
      slots_(static_cast<size_t>(options.limits.max_num_seqs)),
      block_stamps_(static_cast<size_t>(options.num_blocks)),
      slot_steps_(slots_.size()) {
  LS_CHECK_GE(options.limits.block_size, 1);
  const auto max_tokens = static_cast<size_t>(options.limits.max_batched_tokens);
  Reserve(options.limits, batch_);
  batch_.query_starts.push_back(0);
  entries_.reserve(slots_.size());
  sampled_.reserve(slots_.size());
  if (options.is_last_stage) logits_uses_.reserve(max_tokens);
}

absl::Status SlotTable::Invalid(uint32_t slot, const std::string& problem) const {
  return absl::InvalidArgumentError(
      absl::StrCat("step ", last_step_ + 1, ", slot ", slot, ": ", problem));
}

absl::Status SlotTable::Close(uint32_t slot) {
  if (slot >= slots_.size()) {
    return Invalid(slot, absl::StrCat("closed, but there are ", slots_.size(), " slots"));
  }
  if (!slots_[slot].open) return Invalid(slot, "closed, but it is not open");
  slots_[slot].open = false;
  slots_[slot].matcher.reset();
  return absl::OkStatus();
}

absl::Status SlotTable::CheckTokens(uint32_t slot, std::span<const int32_t> tokens) const {
  for (const int32_t token : tokens) {
    if (token >= 0 && token < options_.vocab_size) continue;
    return Invalid(slot,
                   absl::StrCat("token id ", token, ", vocabulary size is ", options_.vocab_size));
  }
  return absl::OkStatus();
}

absl::Status SlotTable::CheckOpen(const engine::SlotOpen& open) const {
  if (open.slot >= slots_.size()) {
    return Invalid(open.slot, absl::StrCat("opened, but there are ", slots_.size(), " slots"));
  }
  if (slots_[open.slot].open) return Invalid(open.slot, "opened, but it is open already");
  const int64_t num_tokens = static_cast<int64_t>(open.tokens.size());
  if (num_tokens < 1 || num_tokens > options_.limits.max_model_len) {
    return Invalid(open.slot, absl::StrCat("opened with ", num_tokens, " tokens, must be 1 to ",
                                           options_.limits.max_model_len));
  }
  if (open.num_prompt_tokens < 1 || open.num_prompt_tokens > num_tokens) {
    return Invalid(open.slot, absl::StrCat(open.num_prompt_tokens, " prompt tokens of ", num_tokens,
                                           " tokens"));
  }
  if (open.num_computed_tokens >= num_tokens) {
    return Invalid(open.slot, absl::StrCat(open.num_computed_tokens, " computed tokens of ",
                                           num_tokens, " tokens"));
  }
  RETURN_IF_ERROR(CheckTokens(open.slot, open.tokens));
  const absl::Status sampling = ValidateSamplingParams(open.sampling, options_.vocab_size);
  return sampling.ok() ? sampling : Invalid(open.slot, std::string(sampling.message()));
}

absl::Status SlotTable::Open(const engine::SlotOpen& open) {
  RETURN_IF_ERROR(CheckOpen(open));
  Slot& slot = slots_[open.slot];
  slot.open = true;
  slot.generation = ++last_generation_;
  slot.sequence_index = open.sequence_index;
  slot.sampling = open.sampling;
  slot.num_prompt_tokens = open.num_prompt_tokens;
  slot.num_known_tokens = static_cast<int64_t>(open.tokens.size());
  slot.num_computed_tokens = open.num_computed_tokens;
  slot.source = -1;
  slot.sampled_step = 0;
  slot.drafts.clear();
  slot.last_token = -1;
  slot.blocks.clear();
  if (options_.is_first_stage || options_.is_last_stage) slot.tokens = open.tokens;
  return options_.is_last_stage ? OpenOutput(open, slot) : absl::OkStatus();
}

absl::Status SlotTable::OpenOutput(const engine::SlotOpen& open, Slot& slot) {
  slot.history.Reset(slot.sampling, options_.vocab);
  if (slot.sampling.constraint.kind != OutputConstraint::Kind::kNone) {
    if (options_.constraints == nullptr) return Invalid(open.slot, "constrained: no vocabulary");
    auto masks = options_.constraints->Get(slot.sampling.constraint);
    if (!masks.ok()) return Invalid(open.slot, std::string(masks.status().message()));
    slot.matcher = std::make_unique<grammar::OutputMatcher>(*std::move(masks));
  }
  const std::span<const int32_t> tokens(open.tokens);
  slot.history.AddPrompt(tokens.first(open.num_prompt_tokens));
  for (const int32_t token : tokens.subspan(open.num_prompt_tokens)) AddOutput(slot, token);
  return absl::OkStatus();
}

void SlotTable::AddOutput(Slot& slot, int32_t token) {
  slot.history.AddOutput(token);
  if (slot.matcher != nullptr) slot.matcher->Add(token);
}

absl::Status SlotTable::CheckGrant(const engine::BlockGrant& grant) const {
  if (grant.slot >= slots_.size() || !slots_[grant.slot].open) {
    return Invalid(grant.slot, "granted blocks, but it is not open");
  }
  const size_t num_held = slots_[grant.slot].blocks.size();
  const auto most = static_cast<size_t>(options_.limits.max_blocks_per_seq());
  if (grant.blocks.size() > most - num_held) {
    return Invalid(grant.slot, absl::StrCat("granted ", grant.blocks.size(), " blocks beside its ",
                                            num_held, ", the longest sequence has ", most));
  }
  return absl::OkStatus();
}

absl::Status SlotTable::Grant(const engine::BlockGrant& grant) {
  RETURN_IF_ERROR(CheckGrant(grant));
  std::vector<int32_t>& blocks = slots_[grant.slot].blocks;
  ++block_stamp_;
  for (const int32_t block : blocks) block_stamps_[block] = block_stamp_;
  for (const int32_t block : grant.blocks) {
    if (block < 0 || block >= options_.num_blocks) {
      return Invalid(grant.slot,
                     absl::StrCat("granted block ", block, ", there are ", options_.num_blocks));
    }
    if (block_stamps_[block] == block_stamp_) {
      return Invalid(grant.slot, absl::StrCat("granted block ", block, " twice"));
    }
    block_stamps_[block] = block_stamp_;
    batch_.new_blocks.push_back(
        {static_cast<int32_t>(grant.slot), static_cast<int32_t>(blocks.size()), block});
    blocks.push_back(block);
  }
  return absl::OkStatus();
}

absl::Status SlotTable::CheckWork(const engine::SlotWork& work) const {
  if (work.slot >= slots_.size() || !slots_[work.slot].open) {
    return Invalid(work.slot, "given work, but it is not open");
  }
  if (slot_steps_[work.slot] == last_step_ + 1) return Invalid(work.slot, "given work twice");
  const Slot& slot = slots_[work.slot];
  if (!slot.drafts.empty()) return Invalid(work.slot, "given work before it was told its tokens");
  const int64_t end_of_known = slot.num_computed_tokens + work.num_tokens;
  const int64_t end = slot.num_computed_tokens + work.num_rows();
  if (work.num_tokens < 1 || end_of_known > slot.num_known_tokens) {
    return Invalid(work.slot, absl::StrCat("to compute ", work.num_tokens, " tokens after ",
                                           slot.num_computed_tokens, ", but only ",
                                           slot.num_known_tokens, " are known"));
  }
  if (end > options_.limits.max_model_len) {
    return Invalid(work.slot, absl::StrCat("to compute ", end, " tokens, the longest sequence is ",
                                           options_.limits.max_model_len));
  }
  if (work.sample && end_of_known != slot.num_known_tokens) {
    return Invalid(work.slot, absl::StrCat("to sample after ", end_of_known, " tokens, but ",
                                           slot.num_known_tokens, " are known"));
  }
  const int64_t capacity = static_cast<int64_t>(slot.blocks.size()) * options_.limits.block_size;
  if (end > capacity) {
    return Invalid(work.slot, absl::StrCat("to compute ", end, " tokens, but its ",
                                           slot.blocks.size(), " blocks hold ", capacity));
  }
  if (batch_.num_tokens() + work.num_rows() > options_.limits.max_batched_tokens) {
    return Invalid(work.slot, absl::StrCat("with ", work.num_rows(), " tokens the step exceeds ",
                                           options_.limits.max_batched_tokens, " tokens"));
  }
  return CheckDrafts(work);
}

void SlotTable::AddTokens(const Slot& slot, const Entry& entry) {
  const int64_t block_size = options_.limits.block_size;
  for (int64_t i = 0; i < entry.num_tokens; ++i) {
    const int64_t position = entry.first_position + i;
    batch_.positions.push_back(static_cast<int32_t>(position));
    batch_.slot_mapping.push_back(int64_t{slot.blocks[position / block_size]} * block_size +
                                  position % block_size);
  }
  batch_.query_starts.push_back(static_cast<int32_t>(batch_.num_tokens()));
  batch_.context_lens.push_back(static_cast<int32_t>(entry.first_position + entry.num_tokens));
  batch_.table_rows.push_back(static_cast<int32_t>(entry.slot));
}

void SlotTable::AddLogits(const Slot& slot, const Entry& entry, bool sample) {
  const SlotRef ref{.slot = entry.slot, .generation = slot.generation};
  const int64_t end = entry.first_position + entry.num_tokens;
  const int64_t row_of_first = batch_.num_tokens() - entry.num_tokens;
  if (slot.sampling.num_prompt_logprobs >= 0) {
    const int64_t end_of_judges = std::min(end, slot.num_prompt_tokens - 1);
    for (int64_t position = entry.first_position; position < end_of_judges; ++position) {
      batch_.logits_rows.push_back(
          static_cast<int32_t>(row_of_first + position - entry.first_position));
      logits_uses_.push_back({.slot = ref,
                              .position = static_cast<uint64_t>(position + 1),
                              .prompt_target = slot.tokens[position + 1]});
    }
  }
  if (!sample) return;
  for (int64_t position = entry.end_of_known(); position <= end; ++position) {
    const int64_t num_drafts = position - entry.end_of_known();
    batch_.logits_rows.push_back(
        static_cast<int32_t>(row_of_first + position - 1 - entry.first_position));
    logits_uses_.push_back({.slot = ref,
                            .position = static_cast<uint64_t>(position),
                            .prompt_target = -1,
                            .source = num_drafts > 0 ? -1 : entry.source,
                            .num_drafts = static_cast<int32_t>(num_drafts)});
  }
}

absl::Status SlotTable::AddWork(const engine::SlotWork& work) {
  RETURN_IF_ERROR(CheckWork(work));
  Slot& slot = slots_[work.slot];
  slot_steps_[work.slot] = last_step_ + 1;
  const Entry entry{.slot = work.slot,
                    .first_position = slot.num_computed_tokens,
                    .num_tokens = work.num_rows(),
                    .num_drafts = std::ssize(work.drafts),
                    .source = slot.source,
                    .last_token = slot.last_token,
                    .sampled_step = slot.sampled_step};
  entries_.push_back(entry);
  AddTokens(slot, entry);
  if (options_.is_last_stage) AddLogits(slot, entry, work.sample);
  slot.num_computed_tokens += work.num_tokens;
  if (!work.sample) return absl::OkStatus();
  if (!work.drafts.empty()) {
    slot.drafts = work.drafts;
    sampled_.insert(sampled_.end(), static_cast<size_t>(work.num_sampled()),
                    {.slot = work.slot, .generation = kNobody});
    return absl::OkStatus();
  }
  ++slot.num_known_tokens;
  slot.source = static_cast<int32_t>(options_.has_token_table ? work.slot : sampled_.size());
  slot.sampled_step = last_step_ + 1;
  slot.last_token = -1;
  sampled_.push_back({.slot = work.slot, .generation = slot.generation});
  return absl::OkStatus();
}

void SlotTable::BeginBatch() {
  batch_.token_ids.clear();
  batch_.token_sources.clear();
  batch_.positions.clear();
  batch_.slot_mapping.clear();
  batch_.query_starts.assign(1, 0);
  batch_.context_lens.clear();
  batch_.table_rows.clear();
  batch_.new_blocks.clear();
  batch_.logits_rows.clear();
  entries_.clear();
  sampled_.clear();
  logits_uses_.clear();
}

absl::Status SlotTable::Apply(const engine::StepPlan& plan) {
  if (plan.step_id != last_step_ + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan of step ", plan.step_id, " where step ", last_step_ + 1, " is next"));
  }
  if (plan.work.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("plan of step ", plan.step_id, " has no work"));
  }
  BeginBatch();
  for (const uint32_t slot : plan.closed) RETURN_IF_ERROR(Close(slot));
  for (const engine::SlotOpen& open : plan.opened) RETURN_IF_ERROR(Open(open));
  for (const engine::BlockGrant& grant : plan.grants) RETURN_IF_ERROR(Grant(grant));
  for (const engine::SettledTokens& settled : plan.settled) RETURN_IF_ERROR(Settle(settled));
  for (const engine::SlotWork& work : plan.work) RETURN_IF_ERROR(AddWork(work));
  if (!options_.is_first_stage) batch_.token_ids.assign(batch_.positions.size(), 0);
  last_step_ = plan.step_id;
  return absl::OkStatus();
}

LogitsRow SlotTable::RowOf(const LogitsUse& use) const {
  const Slot& slot = slots_[use.slot.slot];
  const bool misses_token = slot.tokens.size() < use.position;
  return {.params = &slot.sampling,
          .prompt_target = use.prompt_target,
          .history = &slot.history,
          .matcher = slot.matcher.get(),
          .uncounted = misses_token ? use.source : -1,
          .drafts = std::span(slot.drafts).first(static_cast<size_t>(use.num_drafts)),
          .sequence_index = slot.sequence_index,
          .position = use.position,
          .num_output_tokens =
              static_cast<int32_t>(static_cast<int64_t>(use.position) - slot.num_prompt_tokens)};
}

bool SlotTable::NeedsLastTokens() const {
  return std::any_of(logits_uses_.begin(), logits_uses_.end(), [&](const LogitsUse& use) {
    const Slot& slot = slots_[use.slot.slot];
    const bool is_penalized = use.num_drafts > 0 && HasPenalties(slot.sampling);
    return use.prompt_target < 0 && (slot.matcher != nullptr || is_penalized);
  });
}

bool SlotTable::MissesTokens() const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.end_of_known() > std::ssize(slots_[entry.slot].tokens);
  });
}

void SlotTable::FillTokenIds() {
  batch_.token_ids.clear();
  batch_.token_sources.clear();
  for (const Entry& entry : entries_) {
    AddKnownTokens(entry);
    const std::vector<int32_t>& drafts = slots_[entry.slot].drafts;
    batch_.token_ids.insert(batch_.token_ids.end(), drafts.begin(), drafts.end());
  }
  if (!batch_.token_sources.empty()) batch_.token_sources.resize(batch_.token_ids.size(), -1);
}

// With a table, those that were sampled are not among the slot's.
void SlotTable::AddKnownTokens(const Entry& entry) {
  if (entry.last_token >= 0) {
    LS_CHECK_EQ(entry.end_of_known() - entry.first_position, 1);
    batch_.token_ids.push_back(entry.last_token);
    return;
  }
  const std::vector<int32_t>& tokens = slots_[entry.slot].tokens;
  const int64_t end = entry.end_of_known();
  const int64_t num_tokens = std::ssize(tokens);
  // Behind a token that was sampled, an entry has just that one.
  const int64_t known_end = std::clamp(num_tokens, entry.first_position, end);
  LS_CHECK(end <= num_tokens || (entry.source >= 0 && end - known_end == 1 &&
                                 (options_.has_token_table || end - num_tokens == 1)))
      << end - num_tokens << " missing tokens";
  batch_.token_ids.insert(batch_.token_ids.end(), tokens.begin() + entry.first_position,
                          tokens.begin() + known_end);
  if (known_end == end) return;
  batch_.token_sources.resize(batch_.token_ids.size(), -1);
  batch_.token_sources.push_back(entry.source);
  batch_.token_ids.push_back(0);
}

uint64_t SlotTable::NewestSource() const {
  uint64_t newest = 0;
  for (const Entry& entry : entries_) newest = std::max(newest, entry.sampled_step);
  return newest;
}

void SlotTable::AppendSampled(const SlotRef& ref, int32_t token) {
  Slot& slot = slots_[ref.slot];
  if (!slot.open || slot.generation != ref.generation) return;
  AddToken(slot, token);
}

void SlotTable::AddToken(Slot& slot, int32_t token) {
  if (!options_.is_first_stage && !options_.is_last_stage) return;
  slot.tokens.push_back(token);
  LS_CHECK_LE(std::ssize(slot.tokens), slot.num_known_tokens);
  if (options_.is_last_stage) AddOutput(slot, token);
}

}  // namespace lockstep
