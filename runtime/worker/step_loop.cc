#include "runtime/worker/step_loop.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "model/sampling/device_choice.h"

namespace lockstep {
namespace {

SlotTableOptions TableOptions(const StepLoopOptions& options, const StageCalls& stage,
                              const RankGroups& groups) {
  ShardedSizes sizes;
  sizes.vocab_size = options.vocab_size;
  return {.limits = options.limits,
          .num_blocks = options.num_blocks,
          .vocab_size = options.vocab_size,
          .is_first_stage = groups.pp->rank() == 0,
          .is_last_stage = groups.pp->rank() == groups.pp->size() - 1,
          .vocab = VocabOf(sizes, groups.tp->size(), groups.tp->rank()),
          .constraints = options.constraints,
          .has_token_table = stage.token_return != nullptr && groups.pp->rank() == 0};
}

}  // namespace

StepLoop::StepLoop(const StepLoopOptions& options, StageCalls stage, RankGroups& groups,
                   RankProgress& progress, ResultSink sink)
    : stage_(std::move(stage)),
      groups_(groups),
      progress_(progress),
      sink_(std::move(sink)),
      vocab_size_(options.vocab_size),
      slots_(TableOptions(options, stage_, groups)) {
  LS_CHECK_GE(stage_.max_logits_rows, 1);
  LS_CHECK(stage_.device_logits == nullptr ||
           stage_.device_logits->max_rows() >=
               std::min(options.limits.max_batched_tokens, stage_.max_logits_rows));
  if (stage_.token_return != nullptr) stage_.token_return->Forget();
  if (is_last()) {
    SamplerOptions sampler;
    sampler.vocab_size = options.vocab_size;
    sampler.eos_token_ids = options.eos_token_ids;
    sampler_ = std::make_unique<VocabSampler>(std::move(sampler), *groups.tp, stage_.device_logits);
  }
}

absl::Status StepLoop::Run(PlanQueue& queue, const WaitCheck& check) {
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<engine::StepPlan> plan, NextPlan(queue, check));
    if (!plan.has_value()) return absl::OkStatus();
    RETURN_IF_ERROR(Step(*plan));
  }
}

// While a step is open, whatever comes first: a plan, or the step's end.
absl::StatusOr<std::optional<engine::StepPlan>> StepLoop::NextPlan(PlanQueue& queue,
                                                                   const WaitCheck& check) {
  if (open_.has_value()) {
    ASSIGN_OR_RETURN(std::optional<engine::StepPlan> plan,
                     queue.PopUnless([this] { return sampler_->IsDone(); }));
    if (plan.has_value()) return plan;
    RETURN_IF_ERROR(FinishOpenStep());
  }
  progress_.Begin(Operation::kIdle);
  return queue.Pop(check);
}

absl::Status StepLoop::Step(const engine::StepPlan& plan) {
  RETURN_IF_ERROR(slots_.Apply(plan));
  RETURN_IF_ERROR(CopyBlocks(plan));
  if (is_first()) {
    if (!is_last()) RETURN_IF_ERROR(AwaitTokens());
    slots_.FillTokenIds();
    LS_CHECK(open_.has_value() || stage_.token_return != nullptr ||
             slots_.batch().token_sources.empty())
        << "nobody has the tokens";
  }
  progress_.Begin(Operation::kForward, plan.step_id);
  RETURN_IF_ERROR(stage_.forward(slots_.batch()));
  if (!is_last()) {
    if (is_first()) RETURN_IF_ERROR(ExpectTokens());
    progress_.FinishStep(plan.step_id);
    return absl::OkStatus();
  }
  progress_.Begin(Operation::kSampling, plan.step_id);
  if (MayRunAhead()) {
    if (slots_.NeedsLastTokens()) RETURN_IF_ERROR(LearnLastTokens());
    return OpenThisStep();
  }
  RETURN_IF_ERROR(FinishOpenStep());
  RETURN_IF_ERROR(SampleStep());
  RETURN_IF_ERROR(SendTokens());
  Report(plan.step_id);
  return absl::OkStatus();
}

// And which of them may be written to: all but those of prefixes that are computed already.
void StepLoop::FindGranted(const engine::StepPlan& plan) {
  first_written_.resize(static_cast<size_t>(slots_.num_slots()));
  const auto first_of = [this](uint32_t slot) -> int64_t& { return first_written_[slot]; };
  for (const engine::SlotOpen& open : plan.opened) {
    first_of(open.slot) = open.num_computed_tokens / slots_.block_size();
  }
  granted_.clear();
  written_.clear();
  for (const NewBlock& block : slots_.batch().new_blocks) {
    granted_.push_back(block.block);
    if (block.index >= first_of(static_cast<uint32_t>(block.table_row))) {
      written_.push_back(block.block);
    }
  }
  for (const engine::SlotOpen& open : plan.opened) first_of(open.slot) = 0;
}

absl::Status StepLoop::CopyBlocks(const engine::StepPlan& plan) {
  const bool copies = !plan.offloaded.empty() || !plan.restored.empty() || !plan.prefetched.empty();
  if (!copies && plan.grants.empty()) return absl::OkStatus();
  if (stage_.copy_blocks) {
    FindGranted(plan);
    return stage_.copy_blocks({.offloaded = plan.offloaded,
                               .restored = plan.restored,
                               .prefetched = plan.prefetched,
                               .granted = granted_,
                               .written = written_});
  }
  if (!copies) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "step ", plan.step_id, " copies blocks of the host's memory, of which there are none"));
}

absl::Status StepLoop::AwaitTokens() {
  return stage_.token_return != nullptr ? stage_.token_return->Await(slots_.NewestSource())
                                        : ReceiveTokens();
}

absl::Status StepLoop::ExpectTokens() {
  if (stage_.token_return == nullptr || slots_.sampled().empty()) return absl::OkStatus();
  sampled_slots_.clear();
  for (const SlotRef& ref : slots_.sampled()) {
    sampled_slots_.push_back(static_cast<int32_t>(ref.slot));
  }
  return stage_.token_return->Expect(slots_.last_step(), sampled_slots_);
}

absl::Status StepLoop::ReceiveTokens() {
  const int last_stage = groups_.pp->size() - 1;
  while (!expected_.empty() && groups_.pp->Probe(last_stage)) RETURN_IF_ERROR(ReceiveOldest());
  if (slots_.MissesTokens()) {
    progress_.Begin(Operation::kWaitingForTokens, slots_.last_step());
    while (slots_.MissesTokens()) RETURN_IF_ERROR(ReceiveOldest());
  }
  if (slots_.sampled().empty()) return absl::OkStatus();
  std::vector<SlotRef> refs;
  if (!spare_.empty()) {
    refs = std::move(spare_.back());
    spare_.pop_back();
  }
  refs.assign(slots_.sampled().begin(), slots_.sampled().end());
  expected_.push_back(std::move(refs));
  return absl::OkStatus();
}

absl::Status StepLoop::ReceiveOldest() {
  LS_CHECK(!expected_.empty()) << "a known token that no step samples";
  std::vector<SlotRef> refs = std::move(expected_.front());
  expected_.pop_front();
  const int64_t num_tokens = static_cast<int64_t>(refs.size());
  tokens_.resize(refs.size());
  for (int64_t at = 0; at < num_tokens; at += kTokensPerMessage) {
    const int64_t count = std::min(kTokensPerMessage, num_tokens - at);
    RETURN_IF_ERROR(groups_.pp->Recv(groups_.pp->size() - 1, tokens_.data() + at,
                                     count * static_cast<int64_t>(sizeof(int32_t))));
  }
  for (size_t i = 0; i < refs.size(); ++i) {
    if (tokens_[i] < 0 || tokens_[i] >= vocab_size_) {
      return absl::InternalError(absl::StrCat("the last stage sampled token ", tokens_[i],
                                              ", vocabulary size is ", vocab_size_));
    }
    slots_.AppendSampled(refs[i], tokens_[i]);
  }
  spare_.push_back(std::move(refs));
  return absl::OkStatus();
}

// Nothing of the step is the host's to do.
bool StepLoop::MayRunAhead() {
  const bool first_stage_has_tokens = is_first() || stage_.token_return != nullptr;
  if (stage_.device_logits == nullptr || !first_stage_has_tokens || slots_.logits_uses().empty()) {
    return false;
  }
  LayOutRows(slots_.logits_uses());
  return sampler_->WouldDecideAll(rows_);
}

// What may be chosen next depends on them; the device is busy with this step's forward pass.
absl::Status StepLoop::LearnLastTokens() {
  RETURN_IF_ERROR(FinishOpenStep());
  LayOutRows(slots_.logits_uses());
  return absl::OkStatus();
}

absl::Status StepLoop::OpenThisStep() {
  const std::span<const LogitsUse> uses = slots_.logits_uses();
  RETURN_IF_ERROR(
      sampler_->Begin(rows_, {.logits = stage_.logits, .max_rows = stage_.max_logits_rows}));
  RETURN_IF_ERROR(SendChosen());
  if (open_.has_value()) {
    ++num_steps_ahead_;
    RETURN_IF_ERROR(FinishOpenStep());
  }
  OpenStep step;
  if (!spare_steps_.empty()) {
    step = std::move(spare_steps_.back());
    spare_steps_.pop_back();
  }
  step.step_id = slots_.last_step();
  step.uses.assign(uses.begin(), uses.end());
  step.sampled.assign(slots_.sampled().begin(), slots_.sampled().end());
  open_ = std::move(step);
  return absl::OkStatus();
}

absl::Status StepLoop::FinishOpenStep() {
  if (!open_.has_value()) return absl::OkStatus();
  OpenStep step = *std::exchange(open_, std::nullopt);
  RETURN_IF_ERROR(sampler_->Finish(outcomes_));
  TakeOutcomes(step.uses);
  AppendTokens(step.sampled);
  Report(step.step_id);
  spare_steps_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status StepLoop::SampleStep() {
  const int64_t num_rows = static_cast<int64_t>(slots_.logits_uses().size());
  for (int64_t first = 0; first < num_rows; first += stage_.max_logits_rows) {
    RETURN_IF_ERROR(SampleTile(first, std::min(stage_.max_logits_rows, num_rows - first)));
  }
  AppendTokens(slots_.sampled());
  return absl::OkStatus();
}

absl::Status StepLoop::SampleTile(int64_t first, int64_t count) {
  const std::span<const LogitsUse> uses = slots_.logits_uses().subspan(first, count);
  ASSIGN_OR_RETURN(const float* logits, stage_.logits(first, count));
  LayOutRows(uses);
  RETURN_IF_ERROR(sampler_->Choose(rows_, logits, outcomes_));
  TakeOutcomes(uses);
  return absl::OkStatus();
}

void StepLoop::LayOutRows(std::span<const LogitsUse> uses) {
  rows_.clear();
  for (const LogitsUse& use : uses) rows_.push_back(slots_.RowOf(use));
}

void StepLoop::TakeOutcomes(std::span<const LogitsUse> uses) {
  for (size_t i = 0; i < uses.size(); ++i) {
    if (uses[i].prompt_target >= 0) {
      if (reports()) AddPromptLogprobs(uses[i], outcomes_[i]);
      continue;
    }
    tokens_.push_back(std::max(outcomes_[i].token, 0));  // whose output ends goes on until told
    if (!reports()) continue;
    engine::SampledToken& sampled = result_.sampled.emplace_back();
    sampled.slot = uses[i].slot.slot;
    sampled.token = outcomes_[i].token;
    if (outcomes_[i].has_logprobs) sampled.logprobs = std::move(outcomes_[i].logprobs);
  }
}

void StepLoop::AppendTokens(std::span<const SlotRef> sampled) {
  LS_CHECK_EQ(tokens_.size(), sampled.size());
  for (size_t i = 0; i < tokens_.size(); ++i) slots_.AppendSampled(sampled[i], tokens_[i]);
}

// Rows of one slot follow each other.
void StepLoop::AddPromptLogprobs(const LogitsUse& use, RowOutcome& outcome) {
  std::vector<engine::PromptLogprobs>& all = result_.prompt_logprobs;
  if (all.empty() || all.back().slot != use.slot.slot) {
    all.push_back({.slot = use.slot.slot,
                   .first_position = static_cast<uint32_t>(use.position),
                   .logprobs = {}});
  }
  all.back().logprobs.push_back(std::move(outcome.logprobs));
}

// Before the host has read them.
absl::Status StepLoop::SendChosen() {
  if (is_first() || slots_.sampled().empty()) return absl::OkStatus();
  return stage_.token_return->Send(stage_.device_logits->chosen_on_device(),
                                   std::ssize(slots_.sampled()));
}

absl::Status StepLoop::SendTokens() {
  if (is_first() || tokens_.empty()) return absl::OkStatus();
  if (stage_.token_return != nullptr) return stage_.token_return->Send(tokens_);
  const int64_t num_tokens = static_cast<int64_t>(tokens_.size());
  for (int64_t at = 0; at < num_tokens; at += kTokensPerMessage) {
    const int64_t count = std::min(kTokensPerMessage, num_tokens - at);
    RETURN_IF_ERROR(
        groups_.pp->Send(0, tokens_.data() + at, count * static_cast<int64_t>(sizeof(int32_t))));
  }
  return absl::OkStatus();
}

void StepLoop::Report(uint64_t step_id) {
  tokens_.clear();
  result_.step_id = step_id;
  if (reports()) sink_(std::exchange(result_, {}));
  progress_.FinishStep(step_id);
}

}  // namespace lockstep
