// Packs a checkpoint's weights ahead, into files beside it that every later start of the same
// layout maps: `lockstep model pack`.
#pragma once

#include <cstdint>
#include <filesystem>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/checkpoint/checkpoint.h"
#include "model/llama/weight_file.h"
#include "model/llama/weights.h"
#include "parallel/process_grid.h"

namespace lockstep {

struct PackOptions {
  WeightDType dtype = WeightDType::kAuto;
  Quantization quantize = Quantization::kNone;
  int num_threads = 1;
  LoadProgress progress;      // over all ranks; may hold nothing
  FillerProgress on_waiting;  // for another process that packs the same; may be null
};

struct PackedWeights {
  std::filesystem::path directory;
  int64_t bytes = 0;         // of all ranks
  int64_t bytes_before = 0;  // of them, were there already
};

// One rank after the other. INVALID_ARGUMENT (layout; a backend whose weights are not kept),
// and LoadIntoCache's errors.
absl::StatusOr<PackedWeights> PackWeights(const Checkpoint& checkpoint, const ProcessGrid& grid,
                                          Backend& backend, const PackOptions& options);

}  // namespace lockstep
