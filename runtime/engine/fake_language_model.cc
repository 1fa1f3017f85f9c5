#include "runtime/engine/fake_language_model.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "runtime/engine/mix.h"

namespace lockstep::engine {

FakeLanguageModel::FakeLanguageModel(uint64_t seed, int32_t vocab_size,
                                     std::vector<int32_t> eos_token_ids)
    : seed_(seed), vocab_size_(vocab_size), eos_token_ids_(std::move(eos_token_ids)) {
  LS_CHECK_GE(vocab_size, 1);
}

uint64_t FakeLanguageModel::Extend(uint64_t prefix, int32_t token) {
  return Mix(prefix, static_cast<uint32_t>(token));
}

bool FakeLanguageModel::IsStop(int32_t token, const SamplingParams& sampling) const {
  const auto contains = [token](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  return contains(sampling.stop_token_ids) || (!sampling.ignore_eos && contains(eos_token_ids_));
}

int32_t FakeLanguageModel::Sample(uint64_t prefix, const SamplingParams& sampling,
                                  uint32_t sequence_index, int64_t num_output_tokens) const {
  uint64_t hash = Mix(Mix(Mix(prefix, seed_), sampling.seed), sequence_index);
  const auto first = static_cast<int32_t>(hash % vocab_size_);
  if (num_output_tokens >= sampling.min_tokens) return first;
  // The first token from there on that may be chosen; if all are stop tokens, so be it.
  for (int32_t i = 0; i < vocab_size_; ++i) {
    const int32_t token = (first + i) % vocab_size_;
    if (!IsStop(token, sampling)) return token;
  }
  return first;
}

LogprobInfo FakeLanguageModel::Logprob(uint64_t prefix, int32_t token, int num_top) const {
  const auto value = [&](int32_t t) {
    return -static_cast<float>(Mix(Extend(prefix, t), seed_) % 1024) / 64.0f;
  };
  LogprobInfo info{value(token), {}};
  for (int32_t t = 0; t < std::min(num_top, vocab_size_); ++t) info.top.push_back({t, value(t)});
  std::sort(info.top.begin(), info.top.end(), [](const TokenLogprob& a, const TokenLogprob& b) {
    return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token;
  });
  return info;
}

std::vector<int32_t> FakeLanguageModel::Generate(std::span<const int32_t> prompt,
                                                 const SamplingParams& sampling,
                                                 uint32_t sequence_index,
                                                 int64_t max_model_len) const {
  uint64_t prefix = kEmpty;
  for (int32_t token : prompt) prefix = Extend(prefix, token);
  const int64_t room = max_model_len - static_cast<int64_t>(prompt.size());
  const int64_t limit = std::min<int64_t>(sampling.max_tokens, room);
  std::vector<int32_t> output;
  while (static_cast<int64_t>(output.size()) < limit) {
    const auto position = static_cast<int64_t>(output.size());
    const int32_t token = Sample(prefix, sampling, sequence_index, position);
    output.push_back(token);
    prefix = Extend(prefix, token);
    if (position >= sampling.min_tokens && IsStop(token, sampling)) break;
  }
  return output;
}

std::vector<LogprobInfo> FakeLanguageModel::PromptLogprobs(std::span<const int32_t> prompt,
                                                           int num_top) const {
  std::vector<LogprobInfo> logprobs;
  uint64_t prefix = kEmpty;
  for (size_t i = 0; i + 1 < prompt.size(); ++i) {
    prefix = Extend(prefix, prompt[i]);
    logprobs.push_back(Logprob(prefix, prompt[i + 1], num_top));
  }
  return logprobs;
}

}  // namespace lockstep::engine
