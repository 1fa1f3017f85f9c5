// One pipeline stage of a Llama on one rank: its share of the layers, of the heads and of the
// vocabulary.
//
// A layer is a sentence: norm, qkv, rope + cache write, attention, output projection, norm,
// gate/up, silu-mul, down. The parallel linear layers own the collectives. In the last layer of
// all, tokens whose logits nobody wants end with attention, or, where none are wanted, with their
// keys and values. Called by the step loop's thread only; Forward allocates nothing.
//
// Numbers: a token's logits depend on its sequence alone, bit for bit, not on the batch, the
// chunking, the threads or the layout (design of the kernels: kernels/backend.h; of the layouts:
// parallel/partition.h).
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/base/notice.h"
#include "model/checkpoint/checkpoint.h"
#include "model/llama/activations.h"
#include "model/llama/device_batch.h"
#include "model/llama/padded_batch.h"
#include "model/llama/rope_tables.h"
#include "model/llama/stage_kv_cache.h"
#include "model/llama/stage_memory.h"
#include "model/llama/stage_shape.h"
#include "model/llama/step_batch.h"
#include "model/llama/weights.h"
#include "model/model_config.h"
#include "parallel/communicator.h"
#include "parallel/process_grid.h"
#include "parallel/token_split.h"

namespace lockstep {

struct StageOptions {
  using Weights = WeightDType;
  Weights weights = Weights::kAuto;
  Quantization quantize = Quantization::kNone;  // matrices, while they are loaded
  KvDType kv_cache = KvDType::kAuto;
  int num_load_threads = 2;
  BatchLimits limits;
  // A directory (made if need be) or a file that keeps packed weights for later starts; empty:
  // none. Why it could not be used is told to on_notice, which may be null.
  std::filesystem::path weight_cache;
  Notice on_notice;
  // Another process packs the same weights, which are waited for. May be null.
  FillerProgress on_waiting;
  // Called by Forward as each half of a layer begins, for those who watch long steps. May be null.
  std::function<void()> on_progress;
};

class LlamaStage {
 public:
  // Reads this rank's bytes. backend and groups must outlive the stage; the checkpoint need not.
  // Errors: INVALID_ARGUMENT (layout, limits; Backend::CheckKvCache; a tensor missing or of another
  // shape: named), RESOURCE_EXHAUSTED (memory), UNAVAILABLE (read error). progress may be null; it
  // is called from loader threads.
  static absl::StatusOr<std::unique_ptr<LlamaStage>> Load(const Checkpoint& checkpoint,
                                                          const ProcessGrid& grid, int rank,
                                                          Backend& backend, RankGroups& groups,
                                                          const StageOptions& options,
                                                          const LoadProgress& progress);

  // How much of so many bytes of weights Load would have to find memory for: nothing where they are
  // packed already (WeightBytesToCome). INVALID_ARGUMENT (layout).
  static absl::StatusOr<int64_t> WeightBytesToCome(const Checkpoint& checkpoint,
                                                   const ProcessGrid& grid, int rank,
                                                   const Backend& backend,
                                                   const StageOptions& options,
                                                   int64_t weight_bytes);

  const StageShape& shape() const { return shape_; }
  const LoadStats& load_stats() const { return load_stats_; }
  bool is_first() const { return shape_.is_first; }
  bool is_last() const { return shape_.is_last; }

  int64_t kv_block_bytes() const { return kv_cache_.block_bytes(); }
  // Before the first Forward; again, it forgets what was cached and has another size.
  // RESOURCE_EXHAUSTED with the bytes wanted.
  absl::Status AllocateKvCache(int64_t num_blocks);
  // Memory of the host for copies of so many blocks, which may be none; again, it forgets what was
  // there. Errors as HostKvBlocks::Allocate's.
  absl::Status AllocateHostBlocks(int64_t num_blocks, const std::function<void()>& on_progress);
  int64_t num_host_blocks() const { return kv_cache_.num_host_blocks(); }
  // Before the Forward of each step that has new blocks or is to copy some: StageKvCache::Copy.
  absl::Status CopyBlocks(const StepBlocks& blocks) { return kv_cache_.Copy(backend_, blocks); }
  // Runs steps of every size once where the backend learns from it, so that none is slow later, and
  // keeps those that repeat: afterwards all memory that steps need has been taken. All ranks
  // together, with a cache that nobody uses yet and that has room for them. Errors as Forward's.
  absl::Status WarmUp();
  // Blocks that this takes.
  int64_t num_warm_up_blocks() const;
  // Keeps them again, after another cache was allocated: nothing runs.
  absl::Status KeepSteps();
  // That the activations of each of max_batched_tokens take.
  int64_t batched_token_bytes() const;

  // Runs this stage: takes token ids (first stage) or receives hidden states from the previous one,
  // and sends them on (or, last stage, keeps the normalised rows logits_rows). INVALID_ARGUMENT for
  // a batch that contradicts itself or the limits, before any of it has run; UNAVAILABLE when a
  // peer is gone. chosen: on the device, what the batch's token_sources point at; read when the
  // work issued before is done.
  absl::Status Forward(const StepBatch& batch, const ChosenToken* chosen = nullptr);

  // Last stage, after Forward: logits of rows [first, first + count) of logits_rows over this
  // rank's vocabulary shape().vocab, f32 [count, its size], on the host until the next call. count
  // <= kMaxLogitsRows.
  absl::StatusOr<const float*> Logits(int64_t first, int64_t count);
  static constexpr int64_t kMaxLogitsRows = kMaxHostLogitsRows;
  // The same, but left on the device, and perhaps not yet computed. Numbers are those of the model
  // only if the groups' Health is OK once they were waited for. count <= max_device_logits_rows()
  // (MaxLogitsRows).
  absl::StatusOr<const float*> LogitsOnDevice(int64_t first, int64_t count);
  int64_t max_device_logits_rows() const;

 private:
  LlamaStage(const ModelConfig& config, const StageShape& shape, const StageOptions& options,
             Backend& backend, RankGroups& groups);
  absl::Status AllocateBuffers();
  absl::Status WarmUpPrompts();
  absl::Status KeepShape(const PaddedShape& shape, const StepBatch& batch);
  void WarmUpHead();

  absl::Status RunPadded(const StepBatch& batch, const PaddedShape& shape,
                         const ChosenToken* chosen);
  StepKey PlacePadded(const StepBatch& batch, const PaddedShape& shape, AttentionCut cut);
  void TakeChosenTokens(const ChosenToken* chosen);
  absl::Status RunStep(absl::FunctionRef<absl::Status()> run_layers);
  absl::Status RunLayers();
  absl::Status BeginResidual();
  absl::Status RunLayer(size_t layer);
  void WriteKv(const LayerWeights& weights, const KvCacheView& cache);
  void Attend(const KvCacheView& cache);
  absl::Status ProjectAttended(const LayerWeights& weights);
  absl::Status Mlp(const LayerWeights& weights);
  // Into the delta.
  absl::Status Project(const DeviceBuffer& from, const RowParallelLinear& linear);
  bool LeavesRowsIn(size_t layer) const;
  absl::Status LeaveOtherRows();
  absl::Status NormLogitsRows();
  absl::Status GatherLogitsRows();
  absl::Status AddAndNorm(const DeviceBuffer& weight, const LinearWeight& consumer);
  absl::Status GatherNormed();
  void AddDelta();
  // The first of this rank's tokens in an array of all.
  float* mine(float* rows) const { return rows + tokens_.mine.begin * shape_.hidden; }

  const ModelConfig config_;
  const StageShape shape_;
  const BatchLimits limits_;
  const std::function<void()> on_progress_;
  Backend& backend_;
  RankGroups& groups_;

  LoadStats load_stats_;
  StageWeights weights_;
  RopeTables rope_;  // of max_model_len positions
  StageKvCache kv_cache_;

  DeviceBatch batch_;
  StepBatch padded_;
  Activations act_;
  // Of the step so far: those of its tokens that go on, and where they are.
  TokenSplit tokens_;
  bool are_logits_rows_ = false;  // the others have been left
  float* residual_ = nullptr;     // [num_tokens, hidden], right in this rank's rows
  float* delta_ = nullptr;        // likewise, what waits to be added to it if has_delta_
  bool has_delta_ = false;
  DType delta_dtype_ = DType::kF32;  // only whole steps' may be another
  DeviceBuffer host_logits_;         // of the host: f32 [kMaxLogitsRows, vocab]
};

}  // namespace lockstep
