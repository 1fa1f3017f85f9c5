// A deterministic stand-in for a model and its sampler: the next token is a hash of all tokens
// before it, the seed and the output's index. One wrong, missing or reordered token changes
// everything after it, which is what a test of a scheduler wants. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/sampling/sampling_params.h"

namespace lockstep::engine {

class FakeLanguageModel {
 public:
  FakeLanguageModel(uint64_t seed, int32_t vocab_size, std::vector<int32_t> eos_token_ids);

  // A prefix is named by the hash of its tokens; the empty one by kEmpty.
  static constexpr uint64_t kEmpty = 0;
  static uint64_t Extend(uint64_t prefix, int32_t token);

  // The token after `prefix`, as output token number num_output_tokens (from 0). Stop tokens are
  // masked before min_tokens.
  int32_t Sample(uint64_t prefix, const SamplingParams& sampling, uint32_t sequence_index,
                 int64_t num_output_tokens) const;
  // Of `token` after `prefix`; with num_top made-up alternatives.
  LogprobInfo Logprob(uint64_t prefix, int32_t token, int num_top) const;

  // What one output is when it runs alone: up to and with its stop token, at most max_model_len
  // tokens with the prompt.
  std::vector<int32_t> Generate(std::span<const int32_t> prompt, const SamplingParams& sampling,
                                uint32_t sequence_index, int64_t max_model_len) const;
  // The logprobs of prompt tokens 1 to the last.
  std::vector<LogprobInfo> PromptLogprobs(std::span<const int32_t> prompt, int num_top) const;

 private:
  bool IsStop(int32_t token, const SamplingParams& sampling) const;

  const uint64_t seed_;
  const int32_t vocab_size_;
  const std::vector<int32_t> eos_token_ids_;
};

}  // namespace lockstep::engine
