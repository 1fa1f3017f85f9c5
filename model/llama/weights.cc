#include "model/llama/weights.h"

#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "model/checkpoint/stored_matrix.h"
#include "model/llama/stage_loader.h"
#include "model/llama/weight_cache.h"
#include "model/llama/weight_file.h"

namespace lockstep {
namespace {

absl::Status FillFile(WeightFile& file, const WeightSource& source, StageLoader& loader,
                      LoadStats& stats) {
  const LoadProgress progress = [&](int64_t bytes_done, int64_t bytes_total) {
    file.ShowProgress();  // or who waits for it would be taken for one that hangs
    if (source.progress != nullptr) source.progress(bytes_done, bytes_total);
  };
  file.MakeHugePages(source.num_threads);
  RETURN_IF_ERROR(loader.Read(progress, stats));
  return file.Finish(source.num_threads);
}

// file: where the weights lie; null: in memory of this process.
absl::StatusOr<StageWeights> LoadInto(WeightFile* file, const WeightSource& source,
                                      Backend& backend, Communicator& tp_group, LoadStats& stats) {
  stats = {};
  StageWeights weights;
  StageLoader loader(source, backend, tp_group, weights);
  {
    const PlacedInFile placed(backend, file);
    RETURN_IF_ERROR(loader.Allocate());
  }
  loader.Count(stats);
  if (file != nullptr && file->is_complete()) {
    RETURN_IF_ERROR(file->Populate(source.num_threads, source.progress));
    stats.mapped_bytes = stats.weight_bytes;
    return weights;
  }
  RETURN_IF_ERROR(file == nullptr ? loader.Read(source.progress, stats)
                                  : FillFile(*file, source, loader, stats));
  return weights;
}

}  // namespace

std::optional<WeightDType> WeightDTypeOf(std::string_view name) {
  if (name == "auto") return WeightDType::kAuto;
  if (name == "f32") return WeightDType::kF32;
  if (name == "bf16") return WeightDType::kBF16;
  if (name == "f16") return WeightDType::kF16;
  return std::nullopt;
}

DType HeldDType(WeightDType wanted, DType stored, bool holds_f16) {
  switch (wanted) {
    case WeightDType::kAuto:
      return stored == DType::kF16 && !holds_f16 ? DType::kF32 : stored;
    case WeightDType::kF32:
      return DType::kF32;
    case WeightDType::kBF16:
      return DType::kBF16;
    case WeightDType::kF16:
      break;
  }
  return DType::kF16;
}

absl::StatusOr<StageWeights> LoadIntoCache(const WeightSource& source, Backend& backend,
                                           Communicator& tp_group, LoadStats& stats) {
  // What was packed ahead, and then what the cache has, may be damaged; what this fills is not.
  constexpr int kMostTries = 3;
  bool packed_is_damaged = false;
  for (int tries = 1;; ++tries) {
    ASSIGN_OR_RETURN(const OpenedWeights opened,
                     OpenWeightFile(source, backend, packed_is_damaged));
    auto weights = LoadInto(opened.file.get(), source, backend, tp_group, stats);
    if (weights.ok()) return weights;
    opened.file->Discard();
    if (!absl::IsDataLoss(weights.status()) || tries == kMostTries) return weights;
    if (source.on_notice != nullptr) {
      source.on_notice(absl::StrFormat("%s; it is not used", weights.status().message()));
    }
    packed_is_damaged |= opened.is_packed_ahead;
    if (!opened.is_packed_ahead) opened.file->Remove();
  }
}

// A cache that cannot be used costs time, not the start.
absl::StatusOr<StageWeights> LoadStageWeights(const WeightSource& source, Backend& backend,
                                              Communicator& tp_group, LoadStats& stats) {
  RETURN_IF_ERROR(source.checkpoint.config().HeldAs(source.quantize).status());
  if (source.dtype == WeightDType::kF16 && !backend.HoldsF16()) {
    return absl::InvalidArgumentError(kNoF16OnCpus);
  }
  if (UsesCache(source, backend)) {
    auto weights = LoadIntoCache(source, backend, tp_group, stats);
    if (weights.ok()) return weights;
    if (source.on_notice != nullptr) {
      source.on_notice(absl::StrFormat("weights are packed in memory, not kept in %s: %s",
                                       source.cache.string(), weights.status().message()));
    }
  }
  return LoadInto(nullptr, source, backend, tp_group, stats);
}

absl::StatusOr<DType> AttentionDType(const Checkpoint& checkpoint, WeightDType dtype,
                                     bool holds_f16) {
  const ModelConfig& config = checkpoint.config();
  std::vector<DType> dtypes;
  for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}) {
    const bool is_query = dtypes.empty();
    ASSIGN_OR_RETURN(const StoredMatrix matrix,
                     OpenMatrix(checkpoint, {LayerTensor(0, name),
                                             (is_query ? config.num_heads : config.num_kv_heads) *
                                                 config.head_dim,
                                             config.hidden_size}));
    dtypes.push_back(matrix.dtype);
  }
  return HeldDType(dtype, CommonDType({dtypes[0], dtypes[1], dtypes[2]}), holds_f16);
}

}  // namespace lockstep
