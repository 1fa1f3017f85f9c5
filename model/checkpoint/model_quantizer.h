// Writes a checkpoint's matrices in 8 or 4 bits: `lockstep model quantize`.
//
// The output is a Hugging Face directory in compressed-tensors' "pack-quantized" layout, which vLLM
// and transformers read, too, where groups divide a matrix's columns. For every matrix NAME of a
// layer:
//   NAME.weight_packed  I32 [rows, ceil(columns * bits / 32)]: q + 128 or q + 8, the first in the
//                       lowest bits of a word
//   NAME.weight_scale   BF16 [rows, groups]: groups of 64 (8 bits) or 32 (4 bits) columns from the
//                       first one on
//   NAME.weight_shape   I64 [2]: rows, columns
// q and scales are QuantizeWeightGroup's (kernels/quantization.h), so that the output is served
// with the same bits as the input with --quantize, but for o_proj and down_proj where their
// K-slices (NumKSlices of parallel/partition.h) are not whole groups: those become numbers while
// they are loaded. Tables, norms and the LM head stay as they are (the head is kept in 8 bits when
// it is loaded).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/quantization.h"

namespace lockstep {

struct QuantizeOptions {
  std::filesystem::path input;
  std::filesystem::path output;  // CheckedOutput's
  Quantization quantization = Quantization::kInt8;
  int64_t max_shard_bytes = 5'000'000'000;
  int num_threads = 0;  // 0: one per core
  // Called from the working threads, one at a time, with bytes of the output; false stops the work.
  // May be null.
  std::function<bool(int64_t bytes_done, int64_t bytes_total)> progress;
};

struct QuantizedModel {
  int64_t input_bytes = 0;  // of tensors
  int64_t output_bytes = 0;
  int num_files = 0;
  std::string loading_text;  // ModelConfig::LoadingText of the output, for the usual layouts
};

// Nothing is left on errors: those of Checkpoint::Open and CheckLlamaTensors; INVALID_ARGUMENT (the
// input is in our format already; a matrix has a NaN or an infinity: named), RESOURCE_EXHAUSTED
// (disk space), UNAVAILABLE (read and write errors), CANCELLED; for the output CheckedOutput's.
absl::StatusOr<QuantizedModel> QuantizeModel(const QuantizeOptions& options);

}  // namespace lockstep
