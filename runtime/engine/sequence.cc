#include "runtime/engine/sequence.h"

#include <algorithm>

namespace lockstep::engine {

Sequence::Sequence(Request& request, uint32_t index, BlockPool& pool)
    : request(request), index(index), blocks(pool) {}

std::span<const int32_t> Sequence::prompt() const { return request.given.prompt; }

DraftSources Sequence::DraftFrom(const OutputHistory& history) const {
  return {request.given.prediction, tokens(), history.Of(request.given.cache_salt)};
}

void Sequence::CopyPrompt() {
  own_tokens_.reserve(2 * request.given.prompt.size());  // as it would grow with the first token
  own_tokens_ = request.given.prompt;
}

int64_t Sequence::num_output_tokens() const {
  return static_cast<int64_t>(tokens().size() - request.given.prompt.size());
}

bool Sequence::wants_prompt_logprobs() const {
  return index == 0 && request.given.sampling.num_prompt_logprobs >= 0 &&
         num_prompt_logprobs_delivered + 1 < request.given.prompt.size();
}

bool Sequence::IsStopToken(int32_t token) const {
  const auto& stops = request.stop_tokens;
  return std::find(stops.begin(), stops.end(), token) != stops.end();
}

std::optional<FinishReason> Sequence::FinishedBy(int32_t newest_token) const {
  // The ranks cannot choose a stop token before min_tokens; if one ever came, it must not end the
  // output.
  if (num_output_tokens() > request.given.sampling.min_tokens && IsStopToken(newest_token)) {
    return FinishReason::kStop;
  }
  if (static_cast<int64_t>(tokens().size()) >= max_length) return FinishReason::kLength;
  return std::nullopt;
}

SlotOpen Sequence::Open() const {
  SlotOpen open;
  open.slot = slot;
  open.sequence_index = index;
  open.sampling = request.given.sampling;
  if (!wants_prompt_logprobs()) open.sampling.num_prompt_logprobs = -1;
  open.tokens.assign(tokens().begin(), tokens().end());
  open.num_prompt_tokens = request.given.prompt.size();
  open.num_computed_tokens = computed;
  return open;
}

int64_t Sequence::num_opened_tokens() const {
  const SamplingParams& sampling = request.given.sampling;
  return static_cast<int64_t>(tokens().size() + sampling.logit_bias.size() +
                              sampling.stop_token_ids.size() +
                              sampling.constraint.text.size() / sizeof(int32_t));
}

}  // namespace lockstep::engine
