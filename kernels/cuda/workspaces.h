// Device memory that a backend's kernels take for themselves, beside the buffers that it gives out.
// Without CUDA, so that planners count it, too.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/attention_form.h"
#include "kernels/linear_weight.h"

namespace lockstep::cuda {

// Of cuBLASLt's products and our own: what NVIDIA advises for Hopper (cuBLAS documentation,
// "cublasSetWorkspace").
constexpr int64_t kProductWorkspaceBytes = int64_t{32} << 20;

constexpr int64_t WorkspaceBytes(bool deterministic) {
  return kProductWorkspaceBytes +
         (deterministic ? kFixedAttentionWorkspaceBytes : kAttentionWorkspaceBytes);
}

// Rows in e4m3 with an f32 scale to each, in one piece.
constexpr int64_t E4m3RowsBytes(int64_t num_rows, int64_t width) {
  return num_rows * (width + int64_t{sizeof(float)});
}

// Of so few rows our own kernels may be the fastest (skinny_gemm.h), which take them as they are.
constexpr int64_t kSkinnyMaxRows = 64;

// What products in e4m3 quantize by themselves (gemm.h): one at a time. Of rows with a consumer all
// but so few come quantized.
constexpr int64_t QuantizedInputBytes(const ProductInputs& inputs) {
  const auto bytes_of = [](int64_t num_rows, int64_t width) {
    return width == 0 ? 0 : E4m3RowsBytes(num_rows, width);
  };
  return std::max(bytes_of(inputs.num_rows, inputs.width),
                  bytes_of(std::min(inputs.num_rows, kSkinnyMaxRows), inputs.consumer_width));
}

}  // namespace lockstep::cuda
