#include "model/llama/llama_stage.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "model/llama/weight_cache.h"
#include "parallel/hand_over.h"

namespace lockstep {

absl::Status LlamaStage::Forward(const StepBatch& batch, const ChosenToken* chosen) {
  RETURN_IF_ERROR(batch_.Accept(batch, kv_cache_.num_blocks()));
  if (backend_.KeepsSteps()) {
    if (const std::optional<PaddedShape> shape = PaddedShapeFor(batch, limits_)) {
      return RunPadded(batch, *shape, chosen);
    }
  }
  batch_.CopyFrom(batch, backend_, AttentionCut::kOnce);
  if (batch_.num_tokens() == 0) return absl::OkStatus();
  TakeChosenTokens(chosen);
  return RunStep([this] { return RunLayers(); });
}

absl::Status LlamaStage::RunPadded(const StepBatch& batch, const PaddedShape& shape,
                                   const ChosenToken* chosen) {
  const StepKey key = PlacePadded(batch, shape, AttentionCut::kBest);
  TakeChosenTokens(chosen);
  return RunStep([&] { return backend_.Repeat(key, [this] { return RunLayers(); }); });
}

// Puts the batch into that shape and on the device.
StepKey LlamaStage::PlacePadded(const StepBatch& batch, const PaddedShape& shape,
                                AttentionCut cut) {
  Pad(batch, shape, padded_);
  batch_.CopyFrom(padded_, backend_, cut);
  return {shape.Key(), batch_.index().attention_form};
}

void LlamaStage::TakeChosenTokens(const ChosenToken* chosen) {
  if (batch_.token_sources() == nullptr) return;
  backend_.TakeChosenTokens(chosen, batch_.token_sources(), batch_.num_tokens(),
                            batch_.token_ids());
}

// What travels between stages is not part of steps that are kept: those are done only when all of
// them is, so that the next one would wait for its turn until this one's numbers have been taken.
absl::Status LlamaStage::RunStep(absl::FunctionRef<absl::Status()> run_layers) {
  float* residual = act_.residual.as<float>();
  const TokenSplit tokens = SplitTokens(groups_, batch_.num_tokens(), shape_.hidden);
  if (!is_first()) {
    RETURN_IF_ERROR(ReceiveFromPreviousStage(groups_, residual, tokens, shape_.hidden));
  }
  RETURN_IF_ERROR(run_layers());
  return is_last() ? absl::OkStatus() : SendToNextStage(groups_, residual, tokens, shape_.hidden);
}

absl::Status LlamaStage::RunLayers() {
  backend_.BeginStep();
  RETURN_IF_ERROR(BeginResidual());
  for (size_t layer = 0; layer < weights_.layers.size(); ++layer) {
    RETURN_IF_ERROR(RunLayer(layer));
  }
  if (is_last()) return NormLogitsRows();
  AddDelta();
  return absl::OkStatus();
}

absl::Status LlamaStage::BeginResidual() {
  tokens_ = SplitTokens(groups_, batch_.num_tokens(), shape_.hidden);
  are_logits_rows_ = false;
  residual_ = act_.residual.as<float>();
  delta_ = act_.delta.as<float>();
  has_delta_ = false;
  if (!is_first()) return GatherReceived(groups_, residual_, tokens_, shape_.hidden);
  return weights_.embedding->Forward(batch_.token_ids(), tokens_, residual_);
}

absl::Status LlamaStage::RunLayer(size_t layer) {
  const LayerWeights& weights = weights_.layers[layer];
  const KvCacheView& cache = kv_cache_.layer(layer);
  RETURN_IF_ERROR(AddAndNorm(weights.attention_norm, *weights.qkv.weight()));
  WriteKv(weights, cache);
  if (LeavesRowsIn(layer) && batch_.num_logits_rows() == 0) return absl::OkStatus();
  Attend(cache);
  if (LeavesRowsIn(layer)) RETURN_IF_ERROR(LeaveOtherRows());
  RETURN_IF_ERROR(ProjectAttended(weights));
  RETURN_IF_ERROR(AddAndNorm(weights.mlp_norm, *weights.gate_up.weight()));
  return Mlp(weights);
}

void LlamaStage::WriteKv(const LayerWeights& weights, const KvCacheView& cache) {
  weights.qkv.RoundedForward(act_.normed.data(), tokens_.num_tokens, act_.qkv.data());
  backend_.RopeAndWriteKv({.qkv = act_.qkv.data(),
                           .num_heads = static_cast<int>(shape_.query_heads.size()),
                           .cos = rope_.cos.as<float>(),
                           .sin = rope_.sin.as<float>(),
                           .batch = &batch_.index(),
                           .cache = &cache,
                           .qkv_dtype = backend_.ProductDType(tokens_.num_tokens),
                           .adjust = weights.adjustments(config_.rms_norm_eps)});
}

void LlamaStage::Attend(const KvCacheView& cache) {
  backend_.Attention({.qkv = act_.qkv.data(),
                      .num_heads = static_cast<int>(shape_.query_heads.size()),
                      .scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)),
                      .batch = &batch_.index(),
                      .cache = &cache,
                      .out = act_.attended.data(),
                      .qkv_dtype = backend_.ProductDType(tokens_.num_tokens)});
}

absl::Status LlamaStage::ProjectAttended(const LayerWeights& weights) {
  const DeviceBuffer& attended = are_logits_rows_ ? act_.qkv : act_.attended;  // LeaveOtherRows
  return Project(attended, weights.attention_output);
}

absl::Status LlamaStage::Mlp(const LayerWeights& weights) {
  weights.gate_up.RoundedForward(act_.normed.data(), tokens_.num_tokens, act_.gate_up.data());
  backend_.SiluMul({.gate_up = act_.gate_up.data(),
                    .num_tokens = tokens_.num_tokens,
                    .width = shape_.intermediate.size(),
                    .out = act_.gated.data(),
                    .consumer = weights.down.weight(),
                    .gate_up_dtype = backend_.ProductDType(tokens_.num_tokens)});
  return Project(act_.gated, weights.down);
}

absl::Status LlamaStage::Project(const DeviceBuffer& from, const RowParallelLinear& linear) {
  has_delta_ = true;
  delta_dtype_ = linear.OutputDType(tokens_);
  return linear.Forward(from.data(), tokens_, delta_);
}

absl::Status LlamaStage::AddAndNorm(const DeviceBuffer& weight, const LinearWeight& consumer) {
  if (on_progress_ != nullptr) on_progress_();
  backend_.AddRmsNorm({.residual = mine(residual_),
                       .delta = has_delta_ ? mine(delta_) : nullptr,
                       .weight = weight.as<float>(),
                       .eps = static_cast<float>(config_.rms_norm_eps),
                       .num_tokens = tokens_.mine.size(),
                       .hidden = shape_.hidden,
                       .out = act_.normed.data(),
                       .consumer = &consumer,
                       .out_rows = tokens_.is_divided() ? tokens_.room() : 0,
                       .first_out_row = tokens_.mine.begin,
                       .delta_dtype = delta_dtype_});
  has_delta_ = false;
  return tokens_.is_divided() ? GatherNormed() : absl::OkStatus();
}

absl::Status LlamaStage::GatherNormed() {
  std::array<Communicator::Gathering, 2> gatherings;
  size_t count = 0;
  for (const auto& [data, row_bytes] : backend_.RowsToGather(act_.normed.data(), shape_.hidden)) {
    if (row_bytes == 0) continue;
    gatherings[count++] = {.mine = static_cast<std::byte*>(data) + tokens_.mine.begin * row_bytes,
                           .bytes = tokens_.share * row_bytes,
                           .all = data};
  }
  return groups_.tp->AllGatherTogether(std::span(gatherings).first(count));
}

void LlamaStage::AddDelta() {
  backend_.Add(mine(residual_), mine(delta_), delta_dtype_, tokens_.mine.size() * shape_.hidden);
  has_delta_ = false;
}

// Whether tokens without logits leave there, as nobody reads what would become of them: of a
// prompt's chunk all but the last, or all. Steps that are kept want all rows' logits or none
// (model/llama/padded_batch.h).
bool LlamaStage::LeavesRowsIn(size_t layer) const {
  return is_last() && layer + 1 == weights_.layers.size() &&
         batch_.num_logits_rows() < batch_.num_tokens();
}

// Of the stream (GatherLogitsRows), and of what attention has computed: that goes into qkv's
// buffer, which is wide enough and free by now.
absl::Status LlamaStage::LeaveOtherRows() {
  backend_.GatherRows(act_.attended.data(), batch_.logits_rows(), batch_.num_logits_rows(),
                      shape_.q_width() * DTypeBytes(backend_.LinearInput()), act_.qkv.data());
  return GatherLogitsRows();
}

// The final norm of the wanted rows only. The head reads them in parts, and after steps that were
// kept, too: no consumer is named.
absl::Status LlamaStage::NormLogitsRows() {
  if (batch_.num_logits_rows() == 0) return absl::OkStatus();
  if (!are_logits_rows_) {
    AddDelta();
    RETURN_IF_ERROR(GatherLogitsRows());
  }
  backend_.AddRmsNorm({.residual = residual_,
                       .delta = has_delta_ ? delta_ : nullptr,
                       .weight = weights_.final_norm.as<float>(),
                       .eps = static_cast<float>(config_.rms_norm_eps),
                       .num_tokens = tokens_.num_tokens,
                       .hidden = shape_.hidden,
                       .out = act_.normed.data(),
                       .consumer = nullptr,
                       .delta_dtype = delta_dtype_});
  return absl::OkStatus();
}

// The stream goes on with the wanted rows alone, in what was the delta's buffer, and the delta in
// the stream's; undivided. Nothing waits to be added.
//
// Divided rows are looked up as those of a table over ranks: from the owner, zeros from the others.
// No bit changes: a sum that begins with the embedding's rows is never a negative zero.
absl::Status LlamaStage::GatherLogitsRows() {
  LS_CHECK(!has_delta_);
  const int64_t num_rows = batch_.num_logits_rows();
  const TokenSplit all = std::exchange(tokens_, Undivided(num_rows));
  std::swap(residual_, delta_);
  are_logits_rows_ = true;
  const float* const from = delta_;
  if (!all.is_divided()) {
    backend_.GatherRows(from, batch_.logits_rows(), num_rows,
                        shape_.hidden * static_cast<int64_t>(sizeof(float)), residual_);
    return absl::OkStatus();
  }
  backend_.Embed({.table = from + all.mine.begin * shape_.hidden,
                  .table_dtype = DType::kF32,
                  .num_rows = all.mine.size(),
                  .first_id = all.mine.begin,
                  .hidden = shape_.hidden,
                  .ids = batch_.logits_rows(),
                  .num_tokens = num_rows,
                  .out = residual_});
  return groups_.tp->AllReduceSum(residual_, num_rows * shape_.hidden);
}

int64_t LlamaStage::max_device_logits_rows() const {
  return MaxLogitsRows(limits_, backend_.SummarizesLogits());
}

absl::StatusOr<const float*> LlamaStage::LogitsOnDevice(int64_t first, int64_t count) {
  LS_CHECK(is_last());
  const int64_t num_rows = batch_.num_logits_rows();
  const int64_t most = max_device_logits_rows();
  if (first < 0 || count < 0 || count > most || first > num_rows - count) {
    return absl::InvalidArgumentError(
        absl::StrFormat("logits rows [%d, %d + %d) of %d, at most %d at once", first, first, count,
                        num_rows, most));
  }
  if (count > 0 && shape_.vocab.size() > 0) {
    const int64_t row_bytes = shape_.hidden * DTypeBytes(backend_.LinearInput());
    weights_.head->Forward(act_.normed.as<std::byte>() + first * row_bytes, count,
                           act_.logits.as<float>());
  }
  return act_.logits.as<float>();
}

absl::StatusOr<const float*> LlamaStage::Logits(int64_t first, int64_t count) {
  if (count > kMaxLogitsRows) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d rows of logits, at most %d at once", count, kMaxLogitsRows));
  }
  ASSIGN_OR_RETURN(const float* logits, LogitsOnDevice(first, count));
  backend_.CopyToHost(host_logits_.data(), logits,
                      count * shape_.vocab.size() * static_cast<int64_t>(sizeof(float)));
  // A group that has ended lets the step run through with undefined numbers.
  RETURN_IF_ERROR(groups_.tp->Health());
  RETURN_IF_ERROR(groups_.pp->Health());
  return host_logits_.as<float>();
}

LlamaStage::LlamaStage(const ModelConfig& config, const StageShape& shape,
                       const StageOptions& options, Backend& backend, RankGroups& groups)
    : config_(config),
      shape_(shape),
      limits_(options.limits),
      on_progress_(options.on_progress),
      backend_(backend),
      groups_(groups) {}

namespace {

WeightSource SourceOf(const Checkpoint& checkpoint, const StageShape& shape,
                      const StageOptions& options, const LoadProgress& progress) {
  return {.checkpoint = checkpoint,
          .shape = shape,
          .dtype = options.weights,
          .quantize = options.quantize,
          .num_threads = std::max(1, options.num_load_threads),
          .progress = progress,
          .cache = options.weight_cache,
          .on_notice = options.on_notice,
          .on_waiting = options.on_waiting};
}

}  // namespace

absl::StatusOr<int64_t> LlamaStage::WeightBytesToCome(const Checkpoint& checkpoint,
                                                      const ProcessGrid& grid, int rank,
                                                      const Backend& backend,
                                                      const StageOptions& options,
                                                      int64_t weight_bytes) {
  ASSIGN_OR_RETURN(const StageShape shape, MakeStageShape(checkpoint.config(), grid, rank));
  return lockstep::WeightBytesToCome(SourceOf(checkpoint, shape, options, nullptr), backend,
                                     weight_bytes);
}

absl::StatusOr<std::unique_ptr<LlamaStage>> LlamaStage::Load(const Checkpoint& checkpoint,
                                                             const ProcessGrid& grid, int rank,
                                                             Backend& backend, RankGroups& groups,
                                                             const StageOptions& options,
                                                             const LoadProgress& progress) {
  RETURN_IF_ERROR(CheckBatchLimits(options.limits));
  ASSIGN_OR_RETURN(const StageShape shape, MakeStageShape(checkpoint.config(), grid, rank));
  std::unique_ptr<LlamaStage> stage(
      new LlamaStage(checkpoint.config(), shape, options, backend, groups));
  ASSIGN_OR_RETURN(const DType kv_dtype,
                   KvCacheDType(checkpoint, options.weights, options.kv_cache, backend.HoldsF16()));
  ASSIGN_OR_RETURN(stage->kv_cache_,
                   StageKvCache::Describe(checkpoint, shape, options.limits.block_size, kv_dtype));
  RETURN_IF_ERROR(backend.CheckKvCache(stage->kv_cache_.shape()));
  const WeightSource source = SourceOf(checkpoint, shape, options, progress);
  ASSIGN_OR_RETURN(stage->weights_,
                   LoadStageWeights(source, backend, *groups.tp, stage->load_stats_));
  RETURN_IF_ERROR(stage->AllocateBuffers());
  return stage;
}

absl::Status LlamaStage::AllocateBuffers() {
  Reserve(limits_, padded_);
  ASSIGN_OR_RETURN(
      batch_, DeviceBatch::Allocate(backend_, limits_, static_cast<int>(shape_.query_heads.size()),
                                    kv_cache_.shape()));
  if (is_last()) {
    const int64_t logits_rows = std::min(kMaxLogitsRows, limits_.max_batched_tokens);
    ASSIGN_OR_RETURN(host_logits_, backend_.AllocateOnHost(logits_rows * shape_.vocab.size() *
                                                           int64_t{sizeof(float)}));
  }
  ASSIGN_OR_RETURN(rope_, RopeTables::Allocate(backend_, config_.rope(), limits_.max_model_len));
  ASSIGN_OR_RETURN(
      act_, Activations::Allocate(backend_, {.shape = shape_,
                                             .tp = groups_.tp->size(),
                                             .max_batched_tokens = limits_.max_batched_tokens,
                                             .max_logits_rows = max_device_logits_rows(),
                                             .input = backend_.LinearInput(),
                                             .product_bytes = ProductBytes(
                                                 backend_, weights_, limits_.max_batched_tokens)}));
  return absl::OkStatus();
}

int64_t LlamaStage::batched_token_bytes() const {
  return act_.batched_bytes() / limits_.max_batched_tokens;
}

absl::Status LlamaStage::AllocateKvCache(int64_t num_blocks) {
  backend_.ForgetSteps();  // another stage's, too: shapes alone tell steps apart
  batch_.ForgetBlockTables();
  return kv_cache_.Allocate(backend_, num_blocks);
}

absl::Status LlamaStage::AllocateHostBlocks(int64_t num_blocks,
                                            const std::function<void()>& on_progress) {
  return kv_cache_.AllocateHostBlocks(backend_, num_blocks, on_progress);
}

}  // namespace lockstep
