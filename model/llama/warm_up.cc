// LlamaStage::WarmUp: the steps that a stage runs before its first request.
#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/base/status_macros.h"
#include "model/llama/llama_stage.h"
#include "model/llama/uniform_batch.h"

namespace lockstep {

absl::Status LlamaStage::WarmUp() {
  if (!backend_.KeepsSteps()) return absl::OkStatus();
  RETURN_IF_ERROR(WarmUpPrompts());
  RETURN_IF_ERROR(WarmUpChunks());
  RETURN_IF_ERROR(WarmUpDecodes());
  WarmUpHead();
  backend_.Synchronize();
  return absl::OkStatus();
}

namespace {

// The first time libraries choose algorithms and connect, the second time the step is kept.
constexpr int kTimesToKeep = 2;

// The next power of two below.
int64_t Half(int64_t tokens) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(tokens)) / 2);
}

}  // namespace

// Longer than those that are kept.
absl::Status LlamaStage::WarmUpPrompts() {
  const int64_t longest = std::min({limits_.max_batched_tokens, limits_.max_model_len,
                                    num_kv_blocks_ * static_cast<int64_t>(limits_.block_size)});
  // The largest takes its memory first.
  for (int64_t tokens = longest; tokens > kMaxPaddedChunkTokens; tokens = Half(tokens)) {
    RETURN_IF_ERROR(RunNewSequences(1, tokens, 1));
  }
  return absl::OkStatus();
}

// One sequence, as many steps have, or a few.
absl::Status LlamaStage::WarmUpChunks() {
  constexpr int64_t kFewSeqs = 16;
  const int64_t most_tokens = std::min(limits_.max_batched_tokens, kMaxPaddedChunkTokens);
  const int64_t most_seqs = std::min(limits_.max_num_seqs, kFewSeqs);
  for (int64_t tokens = most_tokens; tokens >= kMinPaddedChunkTokens; tokens = Half(tokens)) {
    for (int64_t seqs = 1; seqs <= most_seqs && 2 * seqs <= tokens; seqs *= 4) {
      const int64_t tokens_each = std::min(tokens / seqs, limits_.max_model_len);
      if (tokens_each < 2) continue;
      const int64_t blocks_each = (tokens_each + limits_.block_size - 1) / limits_.block_size;
      if (seqs * blocks_each > num_kv_blocks_) continue;
      RETURN_IF_ERROR(RunNewSequences(seqs, tokens_each, kTimesToKeep));
    }
  }
  return absl::OkStatus();
}

absl::Status LlamaStage::WarmUpDecodes() {
  const int64_t most_seqs =
      std::min({limits_.max_num_seqs, limits_.max_batched_tokens, num_kv_blocks_});
  for (int64_t seqs = 1; seqs < most_seqs; seqs *= 2) {
    RETURN_IF_ERROR(RunNewSequences(seqs, 1, kTimesToKeep));
  }
  return RunNewSequences(most_seqs, 1, kTimesToKeep);
}

absl::Status LlamaStage::RunNewSequences(int64_t num_seqs, int64_t tokens_each, int num_times) {
  StepBatch batch = MakeUniformBatch({.num_seqs = num_seqs,
                                      .context = tokens_each,
                                      .new_tokens = tokens_each,
                                      .block_size = limits_.block_size,
                                      .vocab_size = config_.vocab_size});
  if (!is_last()) batch.logits_rows.clear();  // as in the steps to come
  for (int time = 0; time < num_times; ++time) RETURN_IF_ERROR(Forward(batch));
  return absl::OkStatus();
}

// Its rows are not padded: all powers of two, and the most there are.
void LlamaStage::WarmUpHead() {
  if (!is_last() || shape_.vocab.size() == 0) return;
  const auto most = static_cast<uint64_t>(max_device_logits_rows());
  for (uint64_t rows = std::bit_ceil(most); rows > 0; rows /= 2) {
    weights_.head->Forward(act_.normed.data(), static_cast<int64_t>(std::min(rows, most)),
                           act_.logits.as<float>());
  }
}

}  // namespace lockstep
