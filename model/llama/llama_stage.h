// One pipeline stage of a Llama on one rank: its share of the layers, of the heads and of the vocabulary.
//
// A layer is a sentence: norm, qkv, rope + cache write, attention, output projection, norm, gate/up, silu-mul, down. The parallel linear
// layers own the collectives. Called by the step loop's thread only; Forward allocates nothing.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/checkpoint/checkpoint.h"
#include "model/model_config.h"
#include "model/llama/step_batch.h"
#include "parallel/communicator.h"
#include "parallel/process_grid.h"

namespace lockstep {

struct StageOptions {
  // How matrices are kept: the checkpoint's dtype (f16 is widened to f32) or a forced one.
  enum class Weights { kAuto, kF32, kBF16 };
  Weights weights = Weights::kAuto;
  int num_load_threads = 2;
  BatchLimits limits;
};

struct LoadStats {
  int64_t weight_bytes = 0;  // held in memory
  int64_t loaded_bytes = 0;  // read from the checkpoint
  int64_t shard_bytes = 0;   // of the checkpoint that belong to this rank
};

using LoadProgress = std::function<void(int64_t bytes_done, int64_t bytes_total)>;

class LlamaStage {
 public:
  // Reads this rank's bytes. backend and groups must outlive the stage. Errors: INVALID_ARGUMENT (missing tensor, wrong shape:
  // named), RESOURCE_EXHAUSTED (memory), UNAVAILABLE (read error). progress may be null; it is called from loader threads.
  static absl::StatusOr<std::unique_ptr<LlamaStage>> Load(const Checkpoint& checkpoint,
                                                          const ProcessGrid& grid, int rank,
                                                          Backend& backend, RankGroups& groups,
                                                          const StageOptions& options,
                                                          const LoadProgress& progress);
  virtual ~LlamaStage() = default;

  virtual const LoadStats& load_stats() const = 0;
  // One block on this rank: 2 x its layers x its KV heads x block_size x head_dim x element size.
  virtual int64_t kv_block_bytes() const = 0;
  virtual absl::Status AllocateKvCache(int64_t num_blocks) = 0;

  virtual bool is_first() const = 0;
  virtual bool is_last() const = 0;

  // Runs this stage: takes token ids (first stage) or receives hidden states from the previous one, and sends them on
  // (or, last stage, keeps the normalised rows logits_rows).
  virtual absl::Status Forward(const StepBatch& batch) = 0;

  // Last stage, after Forward: logits of rows [first, first + count) of logits_rows over this rank's vocabulary VocabOf(...),
  // f32 [count, its size], on the host until the next call. count <= kMaxLogitsRows.
  virtual absl::StatusOr<const float*> Logits(int64_t first, int64_t count) = 0;
  static constexpr int64_t kMaxLogitsRows = 256;
};

}  // namespace lockstep
