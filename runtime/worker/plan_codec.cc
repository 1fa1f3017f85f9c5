#include "runtime/worker/plan_codec.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/base/status_macros.h"

namespace lockstep {
namespace {

absl::Status Invalid(absl::string_view field, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(field, " ", problem));
}

bool IsDecode(const engine::SlotWork& work) { return work.sample && work.num_rows() == 1; }

void EncodeConstraint(const OutputConstraint& constraint, v1::SlotConstraint& message) {
  message.set_kind(static_cast<v1::SlotConstraint::Kind>(constraint.kind));
  message.set_text(constraint.text);
  message.set_thought(static_cast<v1::SlotConstraint::Thought>(constraint.thought));
}

void EncodeSampling(const SamplingParams& params, v1::SlotSampling* message) {
  message->set_temperature(params.temperature);
  message->set_top_k(params.top_k);
  message->set_top_p(params.top_p);
  message->set_min_p(params.min_p);
  message->set_repetition_penalty(params.repetition_penalty);
  message->set_presence_penalty(params.presence_penalty);
  message->set_frequency_penalty(params.frequency_penalty);
  for (const auto& [token, bias] : params.logit_bias) {
    message->add_logit_bias_ids(token);
    message->add_logit_bias_values(bias);
  }
  message->set_seed(params.seed);
  message->set_max_tokens(params.max_tokens);
  message->set_min_tokens(params.min_tokens);
  message->mutable_stop_token_ids()->Add(params.stop_token_ids.begin(),
                                         params.stop_token_ids.end());
  message->set_ignore_eos(params.ignore_eos);
  if (params.num_logprobs >= 0) message->set_num_logprobs(params.num_logprobs);
  if (params.num_prompt_logprobs >= 0) {
    message->set_num_prompt_logprobs(params.num_prompt_logprobs);
  }
  if (params.constraint.kind != OutputConstraint::Kind::kNone) {
    EncodeConstraint(params.constraint, *message->mutable_constraint());
  }
}

absl::StatusOr<OutputConstraint> DecodeConstraint(const v1::SlotConstraint& message) {
  if (!v1::SlotConstraint::Kind_IsValid(message.kind())) {
    return Invalid("constraint.kind", absl::StrCat("is ", message.kind()));
  }
  if (!v1::SlotConstraint::Thought_IsValid(message.thought())) {
    return Invalid("constraint.thought", absl::StrCat("is ", message.thought()));
  }
  return OutputConstraint{static_cast<OutputConstraint::Kind>(message.kind()), message.text(),
                          static_cast<OutputConstraint::Thought>(message.thought())};
}

absl::StatusOr<SamplingParams> DecodeSampling(const v1::SlotSampling& message) {
  SamplingParams params;
  params.temperature = message.temperature();
  params.top_k = message.top_k();
  params.top_p = message.top_p();
  params.min_p = message.min_p();
  params.repetition_penalty = message.repetition_penalty();
  params.presence_penalty = message.presence_penalty();
  params.frequency_penalty = message.frequency_penalty();
  const int num_biases = message.logit_bias_ids_size();
  if (num_biases != message.logit_bias_values_size()) {
    return Invalid("logit_bias_values", absl::StrCat("has ", message.logit_bias_values_size(),
                                                     " entries for ", num_biases, " token ids"));
  }
  params.logit_bias.reserve(num_biases);
  for (int i = 0; i < num_biases; ++i) {
    params.logit_bias.emplace_back(message.logit_bias_ids(i), message.logit_bias_values(i));
  }
  params.seed = message.seed();
  params.max_tokens = message.max_tokens();
  params.min_tokens = message.min_tokens();
  params.stop_token_ids.assign(message.stop_token_ids().begin(), message.stop_token_ids().end());
  params.ignore_eos = message.ignore_eos();
  if (message.has_num_logprobs()) params.num_logprobs = message.num_logprobs();
  if (message.has_num_prompt_logprobs()) {
    params.num_prompt_logprobs = message.num_prompt_logprobs();
  }
  if (message.has_constraint()) {
    ASSIGN_OR_RETURN(params.constraint, DecodeConstraint(message.constraint()));
  }
  return params;
}

absl::StatusOr<engine::SlotOpen> DecodeOpen(const v1::SlotOpen& message) {
  engine::SlotOpen open;
  open.slot = message.slot();
  open.sequence_index = message.sequence_index();
  ASSIGN_OR_RETURN(open.sampling, DecodeSampling(message.sampling()));
  open.tokens.assign(message.tokens().begin(), message.tokens().end());
  open.num_prompt_tokens = message.num_prompt_tokens();
  open.num_computed_tokens = message.num_computed_tokens();
  return open;
}

void EncodeCopies(const std::vector<BlockCopy>& copies, v1::BlockCopies& message) {
  for (const BlockCopy& copy : copies) {
    message.add_blocks(copy.block);
    message.add_host_blocks(copy.host_block);
  }
}

absl::StatusOr<std::vector<BlockCopy>> DecodeCopies(const v1::BlockCopies& message) {
  const int count = message.blocks_size();
  if (count != message.host_blocks_size()) {
    return Invalid("host_blocks",
                   absl::StrCat("has ", message.host_blocks_size(), " entries for ", count));
  }
  std::vector<BlockCopy> copies;
  copies.reserve(count);
  for (int i = 0; i < count; ++i) copies.push_back({message.blocks(i), message.host_blocks(i)});
  return copies;
}

void EncodeLogprob(const LogprobInfo& info, v1::LogprobEntry* message) {
  message->set_logprob(info.logprob);
  for (const TokenLogprob& entry : info.top) {
    message->add_top_tokens(entry.token);
    message->add_top_logprobs(entry.logprob);
  }
}

bool IsLogprob(float value) { return value <= 0.0f; }  // false for NaN; -infinity is probability 0

absl::StatusOr<LogprobInfo> DecodeLogprob(const v1::LogprobEntry& message, int64_t vocab_size) {
  if (!IsLogprob(message.logprob())) {
    return Invalid("logprob", absl::StrCat("is ", message.logprob(), ", above 0 or not a number"));
  }
  const int num_top = message.top_tokens_size();
  if (num_top != message.top_logprobs_size() || num_top > SamplingParams::kMaxLogprobs) {
    return Invalid("top_tokens",
                   absl::StrCat("has ", num_top, " entries for ", message.top_logprobs_size(),
                                " values, at most ", SamplingParams::kMaxLogprobs));
  }
  LogprobInfo info{.logprob = message.logprob(), .top = {}};
  info.top.reserve(num_top);
  for (int i = 0; i < num_top; ++i) {
    const TokenLogprob entry{.token = message.top_tokens(i), .logprob = message.top_logprobs(i)};
    if (entry.token < 0 || entry.token >= vocab_size || !IsLogprob(entry.logprob)) {
      return Invalid("top_tokens", absl::StrCat("holds token ", entry.token, " of ", vocab_size,
                                                " with logprob ", entry.logprob));
    }
    info.top.push_back(entry);
  }
  return info;
}

absl::Status DecodeSampled(const v1::StepResult& message, std::span<const uint32_t> sampling_slots,
                           int64_t vocab_size, engine::StepResult& result) {
  if (message.tokens_size() != static_cast<int64_t>(sampling_slots.size())) {
    return Invalid("tokens", absl::StrCat("has ", message.tokens_size(), " entries, step ",
                                          message.step_id(), " samples ", sampling_slots.size()));
  }
  result.sampled.reserve(sampling_slots.size());
  for (size_t i = 0; i < sampling_slots.size(); ++i) {
    const int32_t token = message.tokens(static_cast<int>(i));
    if ((token < 0 || token >= vocab_size) && token != kNoToken) {
      return Invalid("tokens", absl::StrCat("holds ", token, ", vocabulary size is ", vocab_size));
    }
    result.sampled.push_back({.slot = sampling_slots[i], .token = token, .logprobs = {}});
  }
  for (const v1::RowLogprobs& row : message.logprobs()) {
    if (row.index() >= result.sampled.size() || result.sampled[row.index()].logprobs.has_value()) {
      return Invalid("logprobs", absl::StrCat("index ", row.index(), " is repeated or not below ",
                                              result.sampled.size()));
    }
    ASSIGN_OR_RETURN(result.sampled[row.index()].logprobs, DecodeLogprob(row.entry(), vocab_size));
  }
  return absl::OkStatus();
}

absl::StatusOr<engine::PromptLogprobs> DecodePrompt(const v1::SlotPromptLogprobs& message,
                                                    int64_t vocab_size) {
  if (message.first_position() == 0) {
    return Invalid("first_position", "is 0: the first prompt token has no logprob");
  }
  engine::PromptLogprobs prompt;
  prompt.slot = message.slot();
  prompt.first_position = message.first_position();
  prompt.logprobs.reserve(message.entries_size());
  for (const v1::LogprobEntry& entry : message.entries()) {
    ASSIGN_OR_RETURN(prompt.logprobs.emplace_back(), DecodeLogprob(entry, vocab_size));
  }
  return prompt;
}

}  // namespace

void EncodePlan(const engine::StepPlan& plan, v1::StepPlan* message) {
  message->Clear();
  message->set_step_id(plan.step_id);
  message->mutable_closed()->Add(plan.closed.begin(), plan.closed.end());
  for (const engine::SlotOpen& open : plan.opened) {
    v1::SlotOpen* out = message->add_opened();
    out->set_slot(open.slot);
    out->set_sequence_index(open.sequence_index);
    EncodeSampling(open.sampling, out->mutable_sampling());
    out->mutable_tokens()->Add(open.tokens.begin(), open.tokens.end());
    out->set_num_prompt_tokens(open.num_prompt_tokens);
    out->set_num_computed_tokens(open.num_computed_tokens);
  }
  for (const engine::BlockGrant& grant : plan.grants) {
    v1::BlockGrant* out = message->add_grants();
    out->set_slot(grant.slot);
    out->mutable_blocks()->Add(grant.blocks.begin(), grant.blocks.end());
  }
  if (!plan.restored.empty()) EncodeCopies(plan.restored, *message->mutable_restored());
  if (!plan.offloaded.empty()) EncodeCopies(plan.offloaded, *message->mutable_offloaded());
  if (!plan.prefetched.empty()) EncodeCopies(plan.prefetched, *message->mutable_prefetched());
  for (const engine::SettledTokens& settled : plan.settled) {
    v1::SettledTokens* out = message->add_settled();
    out->set_slot(settled.slot);
    out->mutable_tokens()->Add(settled.tokens.begin(), settled.tokens.end());
  }
  size_t num_chunks = plan.work.size();
  while (num_chunks > 0 && IsDecode(plan.work[num_chunks - 1])) --num_chunks;
  for (size_t i = 0; i < plan.work.size(); ++i) {
    if (i >= num_chunks) {
      message->add_decode_slots(plan.work[i].slot);
      continue;
    }
    v1::SlotWork* out = message->add_chunks();
    out->set_slot(plan.work[i].slot);
    out->set_num_tokens(plan.work[i].num_tokens);
    out->set_sample(plan.work[i].sample);
    out->mutable_drafts()->Add(plan.work[i].drafts.begin(), plan.work[i].drafts.end());
  }
}

absl::StatusOr<engine::StepPlan> DecodePlan(const v1::StepPlan& message) {
  engine::StepPlan plan;
  plan.step_id = message.step_id();
  plan.closed.assign(message.closed().begin(), message.closed().end());
  plan.opened.reserve(message.opened_size());
  for (const v1::SlotOpen& open : message.opened()) {
    ASSIGN_OR_RETURN(plan.opened.emplace_back(), DecodeOpen(open));
  }
  plan.grants.reserve(message.grants_size());
  for (const v1::BlockGrant& grant : message.grants()) {
    plan.grants.push_back(
        {.slot = grant.slot(), .blocks = {grant.blocks().begin(), grant.blocks().end()}});
  }
  ASSIGN_OR_RETURN(plan.restored, DecodeCopies(message.restored()));
  ASSIGN_OR_RETURN(plan.offloaded, DecodeCopies(message.offloaded()));
  ASSIGN_OR_RETURN(plan.prefetched, DecodeCopies(message.prefetched()));
  plan.settled.reserve(message.settled_size());
  for (const v1::SettledTokens& settled : message.settled()) {
    plan.settled.push_back(
        {.slot = settled.slot(), .tokens = {settled.tokens().begin(), settled.tokens().end()}});
  }
  plan.work.reserve(message.chunks_size() + message.decode_slots_size());
  for (const v1::SlotWork& chunk : message.chunks()) {
    if (chunk.num_tokens() == 0) {
      return Invalid("num_tokens", absl::StrCat("of slot ", chunk.slot(), " is 0"));
    }
    plan.work.push_back({.slot = chunk.slot(),
                         .num_tokens = chunk.num_tokens(),
                         .sample = chunk.sample(),
                         .drafts = {chunk.drafts().begin(), chunk.drafts().end()}});
  }
  for (const uint32_t slot : message.decode_slots()) {
    plan.work.push_back({.slot = slot, .num_tokens = 1, .sample = true});
  }
  return plan;
}

std::vector<uint32_t> SamplingSlots(const engine::StepPlan& plan) {
  std::vector<uint32_t> slots;
  slots.reserve(plan.work.size());
  for (const engine::SlotWork& work : plan.work) {
    slots.insert(slots.end(), static_cast<size_t>(work.num_sampled()), work.slot);
  }
  return slots;
}

void EncodeResult(const engine::StepResult& result, v1::StepResult* message) {
  message->Clear();
  message->set_step_id(result.step_id);
  message->mutable_tokens()->Reserve(static_cast<int>(result.sampled.size()));
  for (size_t i = 0; i < result.sampled.size(); ++i) {
    message->add_tokens(result.sampled[i].token);
    if (!result.sampled[i].logprobs.has_value()) continue;
    v1::RowLogprobs* row = message->add_logprobs();
    row->set_index(static_cast<uint32_t>(i));
    EncodeLogprob(*result.sampled[i].logprobs, row->mutable_entry());
  }
  for (const engine::PromptLogprobs& prompt : result.prompt_logprobs) {
    v1::SlotPromptLogprobs* out = message->add_prompt_logprobs();
    out->set_slot(prompt.slot);
    out->set_first_position(prompt.first_position);
    for (const LogprobInfo& info : prompt.logprobs) EncodeLogprob(info, out->add_entries());
  }
}

absl::StatusOr<engine::StepResult> DecodeResult(const v1::StepResult& message,
                                                std::span<const uint32_t> sampling_slots,
                                                int64_t vocab_size) {
  engine::StepResult result;
  result.step_id = message.step_id();
  RETURN_IF_ERROR(DecodeSampled(message, sampling_slots, vocab_size, result));
  result.prompt_logprobs.reserve(message.prompt_logprobs_size());
  for (const v1::SlotPromptLogprobs& prompt : message.prompt_logprobs()) {
    ASSIGN_OR_RETURN(result.prompt_logprobs.emplace_back(), DecodePrompt(prompt, vocab_size));
  }
  return result;
}

}  // namespace lockstep
