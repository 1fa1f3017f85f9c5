// A block makes a few tiles of outputs for all rows of x; its warps share k among them, and their
// sums are added in shared memory. Each copies into shared memory for itself, some stages ahead.
// (Loads into registers would not do: the compiler puts them off until they are needed, and memory
// waits for the sums.)
//
// Bytes: W once, from memory; x once for each block, from the second-level cache.
#include "kernels/cuda/skinny_gemm.h"

#include <algorithm>

#include "kernels/cuda/skinny_tiles.cuh"
#include "kernels/cuda/slender_gemm.h"

namespace lockstep::cuda {
namespace {

// The part of a product that one of kWarps warps has. kTiles: of outputs; kColumns: of kTileRows
// rows of x each; kFp8: W is e4m3.
template <typename T, bool kFp8, int kTiles, int kWarps, int kColumns, int kMostStages>
class WarpProduct {
  using Tiles = SkinnyTiles<T, kFp8>;

 public:
  static constexpr int kStep = Tiles::kStep;  // of k, to a stage
  static constexpr int kOutputs = kTiles * kTileOutputs;
  static constexpr int kRows = kColumns * kTileRows;
  struct Stage {
    typename Tiles::Weights weights[kTiles];
    typename Tiles::Inputs inputs[kColumns];
  };
  static constexpr int kStages =
      static_cast<int>(std::min<size_t>(kMostStages, kMaxSharedBytes / kWarps / sizeof(Stage)));
  static constexpr int kSharedBytes = kWarps * kStages * static_cast<int>(sizeof(Stage));
  static constexpr int kBlocksBeside =  // each other on a multiprocessor, at most
      std::min(kMultiprocessorSharedBytes / (kSharedBytes + 1024),
               kMultiprocessorThreads / (kWarps * kWarpSize));
  static_assert(kStages >= 3);  // one is read, the others are on their way

  __device__ WarpProduct(const SkinnyProduct& p, int64_t first_output, Stage* stages)
      : p_(p), first_output_(first_output), stages_(stages) {}

  // Adds the products of kStep k's from k on, from k + stride on, and so forth.
  __device__ void Add(int64_t k, int64_t stride) {
    // W is nobody's result; what there is room for comes while x is being made.
    for (int i = 0; i < kStages - 1; ++i) FetchWeights(i, k + i * stride);
    if (MayBeginEarly(p_, kBlocksBeside) && threadIdx.x < kOutputs) {
      Tiles::PrefetchWeights(p_, first_output_ + threadIdx.x, (kStages - 1) * stride,
                             p_.in_features);
    }
    WaitForEarlierKernels();
    int64_t ahead = k;
    for (int i = 0; i < kStages - 1; ++i, ahead += stride) {
      FetchInputs(i, ahead);
      CopyAsyncCommit();
    }
    for (int stage = 0; k < p_.in_features; k += stride, ahead += stride) {
      CopyAsyncWait<kStages - 2>();
      __syncwarp();  // what lay in the stage that is filled next has been read
      const int free = stage == 0 ? kStages - 1 : stage - 1;
      FetchWeights(free, ahead);
      FetchInputs(free, ahead);
      CopyAsyncCommit();
      Multiply(stages_[stage]);
      stage = stage == kStages - 1 ? 0 : stage + 1;
    }
    CopyAsyncWait<0>();
  }

  // sums: [kOutputs][kRows]
  __device__ void Store(float* sums) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int output = tile * kTileOutputs + Tiles::OutputOf(i);
          sums[output * kRows + c * kTileRows + Tiles::RowOf(i)] = sums_[tile][c][i];
        }
      }
    }
  }

 private:
  __device__ void FetchWeights(int to, int64_t k) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      Tiles::FetchWeights(p_, first_output_ + tile * kTileOutputs, k, p_.in_features,
                          stages_[to].weights[tile]);
    }
  }
  __device__ void FetchInputs(int to, int64_t k) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      Tiles::FetchInputs(p_, c * kTileRows, k, p_.in_features, stages_[to].inputs[c]);
    }
  }

  __device__ void Multiply(const Stage& stage) {
    uint4 inputs[kColumns][Tiles::kInputReads];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) Tiles::ReadInputs(stage.inputs[c], inputs[c]);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const auto pairs = Tiles::PairsOf(stage.weights[tile]);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) Tiles::Multiply(pairs, inputs[c], sums_[tile][c]);
    }
  }

  const SkinnyProduct& p_;
  const int64_t first_output_;
  Stage* const stages_;
  float sums_[kTiles][kColumns][4] = {};
};

template <typename T, bool kFp8, int kTiles, int kWarps, int kColumns, int kMostStages>
__global__ void __launch_bounds__(kWarps* kWarpSize)
    SkinnyGemmKernel(const __grid_constant__ SkinnyProduct p) {
  LetLaterKernelsBegin();
  using Product = WarpProduct<T, kFp8, kTiles, kWarps, kColumns, kMostStages>;
  constexpr int kSums = Product::kOutputs * Product::kRows;
  static_assert(kSums * sizeof(float) <= Product::kStages * sizeof(typename Product::Stage));
  const int warp = threadIdx.x / kWarpSize;
  const int64_t first = int64_t{blockIdx.x} * Product::kOutputs;
  // The scale of the only output whose sums this thread will add; weights are nobody's result.
  static_assert(kWarps * kWarpSize % Product::kOutputs == 0);
  const int64_t own_output = first + threadIdx.x % Product::kOutputs;
  float scale = 1.0f;
  if constexpr (kFp8) scale = own_output < p.out_features ? p.scales[own_output] : 0.0f;
  Product product(p, first, DynamicShared<typename Product::Stage>() + warp * Product::kStages);
  product.Add(warp * Product::kStep, kWarps * Product::kStep);
  __syncthreads();
  auto* const sums = DynamicShared<float>();  // where the stages were
  product.Store(sums + warp * kSums);
  __syncthreads();
  const int count = static_cast<int>(p.num_rows) * Product::kOutputs;
  for (int i = threadIdx.x; i < count; i += kWarps * kWarpSize) {
    const int output = i % Product::kOutputs;
    const int row = i / Product::kOutputs;
    if (first + output >= p.out_features) continue;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[w * kSums + output * Product::kRows + row];
    if constexpr (kFp8) sum *= scale;
    p.y[row * p.out_features + first + output] = sum;
  }
}

template <typename T, bool kFp8, int kTiles, int kWarps, int kColumns, int kMostStages>
cudaError_t LaunchColumns(const SkinnyProduct& p, const KernelStream& stream) {
  using Product = WarpProduct<T, kFp8, kTiles, kWarps, kColumns, kMostStages>;
  const auto kernel = SkinnyGemmKernel<T, kFp8, kTiles, kWarps, kColumns, kMostStages>;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Product::kSharedBytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(CeilDiv<int64_t>(p.out_features, Product::kOutputs)));
  return LaunchOverlapping(kernel, grid, dim3(kWarps * kWarpSize), Product::kSharedBytes, stream,
                           p);
}

template <typename T, bool kFp8, int kTiles, int kWarps, int kMostStages = 6>
cudaError_t LaunchTiles(const SkinnyProduct& p, const KernelStream& stream) {
  return p.num_rows <= kTileRows
             ? LaunchColumns<T, kFp8, kTiles, kWarps, 1, kMostStages>(p, stream)
             : LaunchColumns<T, kFp8, kTiles, kWarps, 2, kMostStages>(p, stream);
}

template <typename T, bool kFp8>
cudaError_t LaunchVariant(int variant, const SkinnyProduct& p, const KernelStream& stream) {
  static_assert(kFewRowsVariants == 5);
  switch (variant) {
    case 0:
      return LaunchTiles<T, kFp8, 1, 8>(p, stream);
    case 1:
      return LaunchTiles<T, kFp8, 1, 4>(p, stream);
    case 2:
      return LaunchTiles<T, kFp8, 1, 16>(p, stream);
    case 3:
      return LaunchTiles<T, kFp8, 2, 8>(p, stream);
    case 4:  // of which more find room beside each other
      return LaunchTiles<T, kFp8, 1, 8, 4>(p, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

bool SkinnyGemmSupports(const SkinnyProduct& p) {
  const auto is_aligned = [](const void* address) {
    return reinterpret_cast<uintptr_t>(address) % 16 == 0;
  };
  return p.num_rows >= 1 && p.num_rows <= kSkinnyMaxRows && p.dtype != DType::kF32 &&
         p.in_features % (p.scales != nullptr ? 16 : 8) == 0 && is_aligned(p.x) && is_aligned(p.w);
}

cudaError_t LaunchSkinnyGemm(int variant, const SkinnyProduct& p, const KernelStream& stream) {
  if (!SkinnyGemmSupports(p) || variant >= NumSkinnyVariants(p.num_rows)) {
    return cudaErrorInvalidValue;
  }
  const int first_slender = p.num_rows <= kSkinnyMostFewRows ? kFewRowsVariants : 0;
  if (variant >= first_slender) return LaunchSlenderGemm(variant - first_slender, p, stream);
  const auto launch = [&](auto element) {
    using T = decltype(element);
    return p.scales != nullptr ? LaunchVariant<T, true>(variant, p, stream)
                               : LaunchVariant<T, false>(variant, p, stream);
  };
  return p.dtype == DType::kF16 ? launch(F16()) : launch(BF16());
}

}  // namespace lockstep::cuda
