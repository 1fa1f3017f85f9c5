// This rank's share of a Llama's parameters, read from a checkpoint and packed for the backend.
//
// Checkpoint tensors are Hugging Face's (model/checkpoint/llama_tensors.h), matrices [outputs,
// inputs]. q, k and v are fused into one matrix, and so are gate and up: each is one read of the
// activations less.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/base/notice.h"
#include "model/checkpoint/checkpoint.h"
#include "model/llama/shard_reader.h"
#include "model/llama/stage_shape.h"
#include "parallel/communicator.h"
#include "parallel/parallel_linear.h"

namespace lockstep {

// How matrices are kept: as the checkpoint has them (f16 is widened to f32 where the backend does
// not hold it), or all in one dtype.
enum class WeightDType { kAuto, kF32, kBF16, kF16 };
// "auto", "f32", "bf16", "f16"; nothing for other names.
std::optional<WeightDType> WeightDTypeOf(std::string_view name);
// What to tell whoever wants f16 of a backend that does not hold it.
inline constexpr char kNoF16OnCpus[] =
    "--dtype f16 is for GPUs (--device cuda); CPUs compute in f32 and bf16, and widen f16 "
    "checkpoints to f32 unless told --dtype bf16";
// What numbers stored so are kept in. holds_f16: Backend::HoldsF16.
DType HeldDType(WeightDType wanted, DType stored, bool holds_f16);

struct LoadStats {
  int64_t weight_bytes = 0;  // held in memory
  int64_t loaded_bytes = 0;  // read from the checkpoint
  int64_t pinned_bytes = 0;  // of loaded_bytes, read to where the device copies them from
  int64_t shard_bytes = 0;   // of the checkpoint that belong to this rank
  int64_t mapped_bytes = 0;  // of weight_bytes, found packed in the cache
};

// Widths are this rank's (StageShape).
struct LayerWeights {
  DeviceBuffer attention_norm;         // f32 [hidden]
  ColumnParallelLinear qkv;            // [q_width + 2 * kv_width, hidden]
  DeviceBuffer qkv_bias;               // f32 [q_width + 2 * kv_width]; these three: or empty
  DeviceBuffer q_norm;                 // f32 [head_dim]
  DeviceBuffer k_norm;                 // f32 [head_dim]
  RowParallelLinear attention_output;  // [hidden, q_width]
  DeviceBuffer mlp_norm;               // f32 [hidden]
  ColumnParallelLinear gate_up;        // [2 * intermediate, hidden]
  RowParallelLinear down;              // [hidden, intermediate]

  // eps: of all norms.
  HeadAdjustments adjustments(double eps) const {
    return {.bias = qkv_bias.as<float>(),
            .q_norm = q_norm.as<float>(),
            .k_norm = k_norm.as<float>(),
            .eps = static_cast<float>(eps)};
  }
};

struct StageWeights {
  std::optional<VocabParallelEmbedding> embedding;  // first stage: [vocab, hidden]
  std::vector<LayerWeights> layers;
  DeviceBuffer final_norm;                // last stage: f32 [hidden]
  std::optional<VocabParallelHead> head;  // last stage: [vocab, hidden]
};

struct WeightSource {
  const Checkpoint& checkpoint;
  const StageShape& shape;
  WeightDType dtype = WeightDType::kAuto;
  Quantization quantize = Quantization::kNone;  // matrices; the embedding table keeps its dtype
  int num_threads = 1;
  const LoadProgress& progress;  // may hold nothing
  // A directory, or a file, that keeps packed weights for later starts, unless they lie beside the
  // checkpoint already (PackWeights); empty: neither is used.
  std::filesystem::path cache;
  Notice on_notice;           // why it is not used; may be null
  FillerProgress on_waiting;  // for another process that packs them; may be null
};

// INVALID_ARGUMENT (a tensor is missing or has another shape: named; a dtype that the backend does
// not hold), RESOURCE_EXHAUSTED (memory), UNAVAILABLE (reading).
absl::StatusOr<StageWeights> LoadStageWeights(const WeightSource& source, Backend& backend,
                                              Communicator& tp_group, LoadStats& stats);

// The same where the cache, which must be named, has to be used: FAILED_PRECONDITION or UNAVAILABLE
// when it cannot be.
absl::StatusOr<StageWeights> LoadIntoCache(const WeightSource& source, Backend& backend,
                                           Communicator& tp_group, LoadStats& stats);

// In which the attention weights are kept. The same for all stages.
absl::StatusOr<DType> AttentionDType(const Checkpoint& checkpoint, WeightDType dtype,
                                     bool holds_f16);

}  // namespace lockstep
