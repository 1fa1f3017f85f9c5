// Products y = x W^T of the few rows of x that decode steps have: bound by the reading of W, which
// is read once, 16 bytes to an access.
//
// cuBLASLt's algorithms are made for more rows; these kernels stand beside them where products are
// measured (gemm.h).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/kernel_stream.h"
#include "kernels/dtype.h"

namespace lockstep::cuda {

struct SkinnyProduct {
  int64_t num_rows = 0;
  int64_t out_features = 0;
  int64_t in_features = 0;
  DType dtype = DType::kBF16;     // of x, and of W unless it has scales
  const void* x = nullptr;        // [num_rows, in_features]
  const void* w = nullptr;        // [out_features, in_features]
  const float* scales = nullptr;  // of W in e4m3: [out_features]
  float* y = nullptr;             // f32 [num_rows, out_features]
};

constexpr int64_t kSkinnyMaxRows = 16;

// 16-bit x of up to kSkinnyMaxRows rows; rows of x and W begin at addresses aligned to 16 bytes.
bool SkinnyGemmSupports(const SkinnyProduct& product);

// How the work is shared out; whatever is best is found by measurement. Sums are f32, of an order
// that depends on the variant and in_features alone: a row's result is the same whatever the
// others.
constexpr int kSkinnyVariants = 4;
cudaError_t LaunchSkinnyGemm(int variant, const SkinnyProduct& product, const KernelStream& stream);

}  // namespace lockstep::cuda
