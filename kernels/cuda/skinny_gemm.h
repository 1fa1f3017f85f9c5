// Products y = x W^T of the few rows of x that decode steps have: bound by the reading of W, which
// is read once, 16 bytes to an access.
//
// cuBLASLt's algorithms are made for more rows; these kernels stand beside them where products are
// measured (gemm.h). There are two: of up to kSkinnyMostFewRows rows warps share k
// (skinny_gemm.cu), of kSlenderLeastRows and more they share outputs (slender_gemm.cu). Where rows
// are both, variants of both are: the first reads x once for 16 or 32 outputs, which of 16 rows and
// W in e4m3 is twice or once the bytes of W from the second-level cache; the second for 128 or 256,
// but blocks that share k have more sums to add up.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/kernel_stream.h"
#include "kernels/cuda/workspaces.h"
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
  // Of each row of W, a multiple of 16: what blocks that may begin before x is there have brought
  // near beyond what they have room for.
  int64_t prefetched_bytes = 0;

  // Of kSlenderLeastRows rows and more: for sums whose k blocks share, and how many there may be at
  // a time. Nobody else may use the memory before the product is done.
  int num_multiprocessors = 0;
  float4* partial_sums = nullptr;
  int64_t partial_sums_bytes = 0;
  uint32_t* arrivals = nullptr;  // [kSkinnyMaxArrivals], zeros before and after
};

constexpr int64_t kSlenderLeastRows = 9;
constexpr int64_t kSkinnyMostFewRows = 16;
constexpr int64_t kSkinnyMaxArrivals = 8192;
constexpr int kFewRowsVariants = 5;
constexpr int kSlenderVariants = 2;

// 16-bit x of up to kSkinnyMaxRows rows; rows of x and W begin at addresses aligned to 16 bytes.
bool SkinnyGemmSupports(const SkinnyProduct& product);

// How the work is shared out; whatever is best is found by measurement. Sums are f32, of an order
// that depends on the kernel and its variant, the sizes of W and the device alone: a row's result
// is the same whatever the others. Those of few rows come first.
constexpr int NumSkinnyVariants(int64_t num_rows) {
  return (num_rows <= kSkinnyMostFewRows ? kFewRowsVariants : 0) +
         (num_rows >= kSlenderLeastRows ? kSlenderVariants : 0);
}
cudaError_t LaunchSkinnyGemm(int variant, const SkinnyProduct& product, const KernelStream& stream);

}  // namespace lockstep::cuda
