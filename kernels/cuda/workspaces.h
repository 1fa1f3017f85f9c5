// Device memory that a backend's kernels take for themselves, beside the buffers that it gives out.
// Without CUDA, so that planners count it, too.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention_form.h"

namespace lockstep::cuda {

// Of cuBLASLt's products and our own: what NVIDIA advises for Hopper (cuBLAS documentation,
// "cublasSetWorkspace").
constexpr int64_t kProductWorkspaceBytes = int64_t{32} << 20;

constexpr int64_t WorkspaceBytes(bool deterministic) {
  return kProductWorkspaceBytes +
         (deterministic ? kFixedAttentionWorkspaceBytes : kAttentionWorkspaceBytes);
}

// Rows in e4m3 with an f32 scale to each, in one piece: the largest input that a product in e4m3
// has quantized by itself (attention's output) stays.
constexpr int64_t E4m3RowsBytes(int64_t num_rows, int64_t width) {
  return num_rows * (width + int64_t{sizeof(float)});
}

}  // namespace lockstep::cuda
