// LlamaStage::WarmUp: the steps that a stage runs before its first request.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "kernels/base/status_macros.h"
#include "model/llama/llama_stage.h"
#include "model/llama/uniform_batch.h"

namespace lockstep {
namespace {

// The next power of two below.
int64_t Half(int64_t tokens) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(tokens)) / 2);
}

// As large as the shape, or a sequence less: one has as many new tokens as the others, which have
// one each, leave or as a model has positions. Nobody reads what becomes of it: all are in block 0.
StepBatch BatchOfShape(const PaddedShape& shape, const BatchLimits& limits) {
  StepBatch batch;
  batch.query_starts.push_back(0);
  const int64_t num_seqs = shape.has_chunks ? shape.num_seqs - 1 : shape.num_seqs;
  const int64_t longest = std::min(shape.num_tokens - (num_seqs - 1), limits.max_model_len);
  for (int64_t seq = 0; seq < num_seqs; ++seq) {
    const int64_t length = seq == 0 ? longest : 1;
    const int64_t num_blocks = (length + limits.block_size - 1) / limits.block_size;
    AddBlockTable(std::vector<int32_t>(static_cast<size_t>(num_blocks), 0), batch);
    for (int64_t position = 0; position < length; ++position) {
      batch.token_ids.push_back(0);
      batch.positions.push_back(static_cast<int32_t>(position));
      batch.slot_mapping.push_back(position % limits.block_size);
    }
    batch.query_starts.push_back(static_cast<int32_t>(batch.positions.size()));
    batch.context_lens.push_back(static_cast<int32_t>(length));
    if (shape.wants_logits) {
      batch.logits_rows.push_back(static_cast<int32_t>(batch.positions.size()) - 1);
    }
  }
  return batch;
}

}  // namespace

absl::Status LlamaStage::WarmUp() {
  if (!backend_.KeepsSteps()) return absl::OkStatus();
  RETURN_IF_ERROR(WarmUpPrompts());
  // Libraries choose algorithms and connect in steps that run.
  for (const PaddedShape& shape : AllPaddedShapes(limits_, /*wants_logits=*/is_last())) {
    const StepBatch batch = BatchOfShape(shape, limits_);
    RETURN_IF_ERROR(batch_.Accept(batch, kv_cache_.num_blocks()));
    RETURN_IF_ERROR(RunPadded(batch, shape, nullptr));
    RETURN_IF_ERROR(KeepShape(shape, batch));
  }
  WarmUpHead();
  batch_.ForgetBlockTables();
  backend_.Synchronize();
  return absl::OkStatus();
}

absl::Status LlamaStage::KeepSteps() {
  if (!backend_.KeepsSteps()) return absl::OkStatus();
  for (const PaddedShape& shape : AllPaddedShapes(limits_, /*wants_logits=*/is_last())) {
    const StepBatch batch = BatchOfShape(shape, limits_);
    RETURN_IF_ERROR(batch_.Accept(batch, kv_cache_.num_blocks()));
    RETURN_IF_ERROR(KeepShape(shape, batch));
  }
  batch_.ForgetBlockTables();
  backend_.Synchronize();
  return absl::OkStatus();
}

int64_t LlamaStage::num_warm_up_blocks() const {
  const int64_t longest = std::min(limits_.max_batched_tokens, limits_.max_model_len);
  return (longest + limits_.block_size - 1) / limits_.block_size;
}

// Longer than those that are kept.
absl::Status LlamaStage::WarmUpPrompts() {
  const int64_t longest =
      std::min({limits_.max_batched_tokens, limits_.max_model_len,
                kv_cache_.num_blocks() * static_cast<int64_t>(limits_.block_size)});
  // The largest takes its memory first.
  for (int64_t tokens = longest; tokens > kMaxPaddedChunkTokens; tokens = Half(tokens)) {
    StepBatch batch = MakeUniformBatch({.num_seqs = 1,
                                        .context = tokens,
                                        .new_tokens = tokens,
                                        .block_size = limits_.block_size,
                                        .vocab_size = config_.vocab_size});
    if (!is_last()) batch.logits_rows.clear();  // as in the steps to come
    RETURN_IF_ERROR(Forward(batch));
  }
  return absl::OkStatus();
}

// In all forms that attention may take.
absl::Status LlamaStage::KeepShape(const PaddedShape& shape, const StepBatch& batch) {
  for (const AttentionCut cut :
       {AttentionCut::kWhole, AttentionCut::kTiles, AttentionCut::kSplits}) {
    const StepKey key = PlacePadded(batch, shape, cut);
    RETURN_IF_ERROR(backend_.Keep(key, [this] { return RunLayers(); }));
  }
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
