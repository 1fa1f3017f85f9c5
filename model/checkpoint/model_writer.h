// Writes a Hugging Face model directory with random weights of any Llama shape, for trying out and
// measuring without a download.
//
// The weights depend on (seed, tensor name, element) only: not on threads, shards or the number of
// layers. Matrices are roughly normal with standard deviation 0.02 (LlamaConfig's
// initializer_range), norms are 1.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/model_config.h"

namespace lockstep {

// Called from the writing threads, one at a time. Returning false stops the work (CANCELLED).
using SynthesisProgress = std::function<bool(int64_t bytes_done, int64_t bytes_total)>;

struct SynthesizeOptions {
  std::string shape;  // a built-in shape's name (model_shapes.h), or the path of a config.json or
                      // its directory
  std::filesystem::path output;       // CheckedOutput's
  std::optional<int64_t> num_layers;  // instead of the shape's
  std::optional<DType> dtype;         // instead of the shape's
  uint64_t seed = 0;
  int64_t max_shard_bytes = 5'000'000'000;  // of tensors in one file; a larger tensor gets its own
  int num_threads = 0;                      // 0: one per core
  SynthesisProgress progress;               // may be null
};

struct SynthesizedModel {
  ModelConfig config;
  int64_t weight_bytes = 0;
  int num_files = 0;  // *.safetensors
};

// The shape that options name, with the overrides applied and validated like any config.json.
absl::StatusOr<ModelConfig> SynthesizedConfig(const SynthesizeOptions& options);

// Builds everything beside output under a temporary name and renames it when complete; nothing is
// left on errors. INVALID_ARGUMENT (shape, overrides), RESOURCE_EXHAUSTED (disk space, with the
// numbers), UNAVAILABLE (write errors), CANCELLED; for the output CheckedOutput's.
absl::StatusOr<SynthesizedModel> SynthesizeModel(const SynthesizeOptions& options);

}  // namespace lockstep
