// A block makes outputs for all rows of x, 32 to each warp, and copies x, which has a quarter of
// the bytes of a block's W in bf16 and half of them in e4m3, into shared memory once for all warps.
// Where outputs are too few for all multiprocessors, blocks share k: each leaves its sums in
// memory, and whichever comes last, warp by warp, adds them up in order of k.
//
// Limits, with 64 rows and 256 outputs to a block, by counting: a multiprocessor of an H100 gets 1
// KiB of W in 79 cycles. For each it copies 256 (bf16) or 512 bytes (e4m3) of x from the
// second-level cache, reads 3 or 5 KiB of shared memory, 24 or 40 cycles, and multiplies for 26 or
// 52 at the rate that mma.sync reaches there: memory is the limit. Not measured yet.
#include "kernels/cuda/slender_gemm.h"

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/skinny_tiles.cuh"

namespace lockstep::cuda {
namespace {

constexpr int kMaxStages = 8;
constexpr int kTilesToWarp = 2;
constexpr int kWarpOutputs = kTilesToWarp * kTileOutputs;
constexpr int64_t kMaxSplits = 8;
constexpr int64_t kLeastSteps = 4;  // that are worth a split
constexpr int kPartsUnderWay = 16;  // to a lane that adds up, 64 registers

// kWarps times kWarpOutputs outputs for kColumns tiles of rows of x; kBlocks to a multiprocessor.
template <typename T, bool kFp8, int kWarps, int kColumns, int kBlocks>
class BlockProduct {
  using Tiles = SkinnyTiles<T, kFp8>;
  struct Stage {
    typename Tiles::Weights weights[kWarps][kTilesToWarp];
    typename Tiles::Inputs inputs[kColumns];
  };
  static constexpr int kStages =
      static_cast<int>(std::min<size_t>(kMaxStages, kMaxSharedBytes / kBlocks / sizeof(Stage)));
  static_assert(kStages >= 3);  // one is read, the others are on their way

 public:
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kBlocksToMultiprocessor = kBlocks;
  static constexpr int kStep = Tiles::kStep;  // of k, to a stage
  static constexpr int kOutputs = kWarps * kWarpOutputs;
  static constexpr int kSharedBytes = kStages * static_cast<int>(sizeof(Stage));
  static constexpr int kQuads = kTilesToWarp * kColumns;  // of a lane's sums
  static constexpr int64_t kPartialBytes = int64_t{kQuads} * kThreads * int64_t{sizeof(float4)};

  __device__ explicit BlockProduct(const SkinnyProduct& p)
      : p_(p),
        warp_(threadIdx.x / kWarpSize),
        first_output_(int64_t{blockIdx.x} * kOutputs + warp_ * kWarpOutputs),
        stages_(DynamicShared<Stage>()) {
#pragma unroll
    for (int i = 0; i < 2 * kTilesToWarp; ++i) {  // weights are nobody's result
      if constexpr (!kFp8) continue;
      const int64_t output = OutputOf(i / 2, i % 2 * 2);
      scales_[i] = output < p.out_features ? p.scales[output] : 0.0f;
    }
  }

  // Adds the products of k from `k` to `end`.
  __device__ void Add(int64_t k, int64_t end) {
    // What there is room for comes while x is being made.
    for (int i = 0; i < kStages - 1; ++i) FetchWeights(i, k + i * kStep, end);
    if (MayBeginEarly(p_, kBlocks)) {
      static_assert(kThreads == kOutputs);
      const int64_t row = int64_t{blockIdx.x} * kOutputs + threadIdx.x;
      Tiles::PrefetchWeights(p_, row, k + (kStages - 1) * kStep, end);
    }
    WaitForEarlierKernels();
    int64_t ahead = k;
    for (int i = 0; i < kStages - 1; ++i, ahead += kStep) {
      FetchInputs(i, ahead, end);
      CopyAsyncCommit();
    }
    for (int stage = 0; k < end; k += kStep, ahead += kStep) {
      CopyAsyncWait<kStages - 2>();
      __syncthreads();  // all of x is there; what lay in the stage that is filled next was read
      const int free = stage == 0 ? kStages - 1 : stage - 1;
      FetchWeights(free, ahead, end);
      FetchInputs(free, ahead, end);
      CopyAsyncCommit();
      Multiply(stages_[stage]);
      stage = stage == kStages - 1 ? 0 : stage + 1;
    }
    CopyAsyncWait<0>();
  }

  // Adds the sums of the other blocks of these outputs, in order of k. False: a later one will.
  __device__ bool AddOthers() {
    float4* const mine = PartialOf(blockIdx.y);
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const float(&sums)[4] = sums_[i / kColumns][i % kColumns];
      mine[i * kWarpSize] = make_float4(sums[0], sums[1], sums[2], sums[3]);
    }
    __threadfence();
    __syncwarp();
    unsigned arrived = 0;  // before this one
    if (Tiles::Lane() == 0) {
      arrived = atomicInc(&p_.arrivals[blockIdx.x * kWarps + warp_], gridDim.y - 1);
    }
    arrived = __shfl_sync(kWholeWarp, arrived, 0);
    __syncwarp();  // behind the count of the first lane: a shuffle orders nothing
    if (arrived != gridDim.y - 1) return false;
    __threadfence();
    SumUp();
    return true;
  }

  __device__ void Write() const {
#pragma unroll
    for (int tile = 0; tile < kTilesToWarp; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t output = OutputOf(tile, i);
        if (output >= p_.out_features) continue;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          const int64_t row = c * kTileRows + Tiles::RowOf(i);
          if (row >= p_.num_rows) continue;
          float sum = sums_[tile][c][i];
          if constexpr (kFp8) sum *= scales_[tile * 2 + i / 2];
          p_.y[row * p_.out_features + output] = sum;
        }
      }
    }
  }

 private:
  __device__ int64_t OutputOf(int tile, int i) const {
    return first_output_ + tile * kTileOutputs + Tiles::OutputOf(i);
  }

  // Each warp its own outputs' W, and of x each its columns.
  __device__ void FetchWeights(int to, int64_t k, int64_t end) {
#pragma unroll
    for (int tile = 0; tile < kTilesToWarp; ++tile) {
      Tiles::FetchWeights(p_, first_output_ + tile * kTileOutputs, k, end,
                          stages_[to].weights[warp_][tile]);
    }
  }
  __device__ void FetchInputs(int to, int64_t k, int64_t end) {
#pragma unroll
    for (int c = warp_; c < kColumns; c += kWarps) {
      Tiles::FetchInputs(p_, c * kTileRows, k, end, stages_[to].inputs[c]);
    }
  }

  __device__ void Multiply(const Stage& stage) {
    typename Tiles::Pairs pairs[kTilesToWarp];
#pragma unroll
    for (int tile = 0; tile < kTilesToWarp; ++tile) {
      pairs[tile] = Tiles::PairsOf(stage.weights[warp_][tile]);
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      uint4 inputs[Tiles::kInputReads];
      Tiles::ReadInputs(stage.inputs[c], inputs);
#pragma unroll
      for (int tile = 0; tile < kTilesToWarp; ++tile) {
        Tiles::Multiply(pairs[tile], inputs, sums_[tile][c]);
      }
    }
  }

  // This lane's, of the split's: [kQuads] with kWarpSize between them.
  __device__ float4* PartialOf(unsigned split) const {
    const int64_t block = int64_t{split} * gridDim.x + blockIdx.x;
    return p_.partial_sums + (block * kWarps + warp_) * kQuads * kWarpSize + Tiles::Lane();
  }

  // Parts of as many splits are under way at once as a lane has registers for.
  __device__ void SumUp() {
    constexpr unsigned kAtOnce = std::max(kPartsUnderWay / kQuads, 1);
    for (unsigned first = 0; first < gridDim.y; first += kAtOnce) {
      float4 parts[kAtOnce][kQuads];
#pragma unroll
      for (unsigned s = 0; s < kAtOnce; ++s) {
        if (first + s >= gridDim.y) break;
        const float4* const theirs = PartialOf(first + s);
#pragma unroll
        for (int i = 0; i < kQuads; ++i) parts[s][i] = LoadFromCache2(theirs + i * kWarpSize);
      }
#pragma unroll
      for (unsigned s = 0; s < kAtOnce; ++s) {
        if (first + s >= gridDim.y) break;
#pragma unroll
        for (int i = 0; i < kQuads; ++i) {
          AddPart(first + s == 0, parts[s][i], sums_[i / kColumns][i % kColumns]);
        }
      }
    }
  }
  __device__ static void AddPart(bool is_first, const float4& part, float (&sums)[4]) {
    const float numbers[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[e] = is_first ? numbers[e] : sums[e] + numbers[e];
  }

  const SkinnyProduct& p_;
  const int warp_;
  const int64_t first_output_;
  Stage* const stages_;
  float scales_[2 * kTilesToWarp] = {};
  float sums_[kTilesToWarp][kColumns][4] = {};
};

template <typename Product>
__global__ void __launch_bounds__(Product::kThreads, Product::kBlocksToMultiprocessor)
    SlenderGemmKernel(const __grid_constant__ SkinnyProduct p, int64_t split_features) {
  LetLaterKernelsBegin();
  const int64_t begin = blockIdx.y * split_features;
  Product product(p);
  product.Add(begin, min(begin + split_features, p.in_features));
  if (gridDim.y == 1 || product.AddOthers()) product.Write();
}

// As many blocks as there is room for at a time, or as there are outputs for.
template <typename Product>
cudaError_t LaunchProduct(const SkinnyProduct& p, const KernelStream& stream) {
  const int64_t blocks = CeilDiv(p.out_features, int64_t{Product::kOutputs});
  const int64_t steps = CeilDiv(p.in_features, int64_t{Product::kStep});
  const int64_t room = int64_t{p.num_multiprocessors} * Product::kBlocksToMultiprocessor;
  const int64_t most_splits = std::clamp<int64_t>(steps / kLeastSteps, 1, kMaxSplits);
  const int64_t split_steps = CeilDiv(steps, std::clamp<int64_t>(room / blocks, 1, most_splits));
  const int64_t splits = CeilDiv(steps, split_steps);
  if (splits > 1 && (splits * blocks * Product::kPartialBytes > p.partial_sums_bytes ||
                     blocks * (Product::kThreads / kWarpSize) > kSkinnyMaxArrivals)) {
    return cudaErrorInvalidValue;
  }
  const auto kernel = SlenderGemmKernel<Product>;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Product::kSharedBytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(splits));
  return LaunchOverlapping(kernel, grid, dim3(Product::kThreads), Product::kSharedBytes, stream, p,
                           split_steps * Product::kStep);
}

template <typename T, bool kFp8, int kWarps, int kBlocks>
cudaError_t LaunchColumns(const SkinnyProduct& p, const KernelStream& stream) {
  const auto launch = [&](auto columns) {
    return LaunchProduct<BlockProduct<T, kFp8, kWarps, columns, kBlocks>>(p, stream);
  };
  if (p.num_rows <= 2 * kTileRows) return launch(std::integral_constant<int, 2>());
  if (p.num_rows <= 4 * kTileRows) return launch(std::integral_constant<int, 4>());
  return launch(std::integral_constant<int, 8>());
}

template <typename T, bool kFp8>
cudaError_t LaunchVariant(int variant, const SkinnyProduct& p, const KernelStream& stream) {
  static_assert(kSlenderVariants == 2);
  switch (variant) {
    case 0:
      return LaunchColumns<T, kFp8, 8, 1>(p, stream);
    case 1:
      return LaunchColumns<T, kFp8, 4, 2>(p, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t LaunchSlenderGemm(int variant, const SkinnyProduct& p, const KernelStream& stream) {
  const auto launch = [&](auto element) {
    using T = decltype(element);
    return p.scales != nullptr ? LaunchVariant<T, true>(variant, p, stream)
                               : LaunchVariant<T, false>(variant, p, stream);
  };
  return p.dtype == DType::kF16 ? launch(F16()) : launch(BF16());
}

}  // namespace lockstep::cuda
