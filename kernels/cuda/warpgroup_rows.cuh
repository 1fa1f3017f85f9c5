// 64 rows of attention in the registers of one warpgroup: products by wgmma, softmax, values.
#pragma once

#include <wgmma.cuh>

#include "kernels/cuda/row_tiles.cuh"
#include "kernels/cuda/softmax_rows.cuh"
#include "kernels/cuda/swizzled_tile.cuh"

namespace lockstep::cuda {

constexpr int kWarpgroupThreads = 4 * kWarpSize;
constexpr int kWarpgroupRows = 64;

// Products are issued and waited for separately, so that the softmax of one tile of kTokens goes on
// while the values of the one before are summed. Keys and values lie as SwizzledTile<kDim,
// kTokens>, named by the address of the tile.
template <typename T, int kDim, int kTokens>
class WarpgroupRows {
 public:
  using Queries = SwizzledTile<kDim, kWarpgroupRows>;
  using Tile = SwizzledTile<kDim, kTokens>;

  // `row`: the warpgroup's first, counted from the sequence's first. Rows see tokens below `end`.
  __device__ WarpgroupRows(const AttentionParams& p, const RowTile& tile, int row, int end)
      : scale_log2_(p.scale_log2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      softmax_.Begin(half, min(tile.Position(p, row + RowOf(half)), end - 1));
    }
  }

  __device__ void IssueScores(uint32_t queries, uint32_t keys) {
    WgmmaFence(scores_);
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      Wgmma<T>(scores_, Queries::Columns(queries, step), Tile::Columns(keys, step), step > 0);
    }
    WgmmaCommit();
  }
  // Of the tile whose scores became weights last.
  __device__ void IssueValues(uint32_t values) {
    WgmmaFence(values_, weights_);
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
      Wgmma<T>(values_, weights_[step], Tile::Rows(values, step));
    }
    WgmmaCommit();
  }
  // Apart from `newest` groups of products issued later.
  template <int newest>
  __device__ void AwaitScores() {
    WgmmaWait<newest>(scores_);
  }
  __device__ void AwaitValues() { WgmmaWait<0>(values_); }
  // And rescales them for the weights that come next, where these have raised any of the
  // warpgroup's maxima: its warps meet at the named barrier, for all must take the same branch
  // (PTX ISA, "wgmma.wait_group"). A wait in each branch: one before both the assembler moves ahead
  // of the softmax. The vote tells it that the lanes of a warp agree, or it makes them meet before
  // every product.
  __device__ void AwaitAndRescaleValues(int barrier) {
    PinRegisters(scores_);
    const bool mine = Softmax::ChangesMine(factors_);
    if (__any_sync(kWholeWarp, NamedBarrierAny<kWarpgroupThreads>(barrier, mine))) {
      WgmmaWait<0>(values_);
      Softmax::Rescale(factors_, values_);
    } else {
      WgmmaWait<0>(values_);
    }
  }

  // Scores of tokens begin.. become weights; values may be on their way meanwhile.
  __device__ void Soften(int begin, bool masked) {
    if (masked) softmax_.Mask(begin, scores_);
    softmax_.Raise(scores_, scale_log2_, factors_);
    softmax_.RescaleSums(factors_);
    softmax_.Soften(scores_, scale_log2_);
  }
  // What the next values are multiplied by.
  __device__ void TakeWeights() { Softmax::template PackWeights<T>(scores_, weights_); }

  // Counted from the warpgroup's first.
  __device__ static int RowOf(int half) {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroupThreads;
    return thread / kWarpSize * 16 + half * 8 + thread % kWarpSize / 4;
  }
  // Of weights. All lanes together.
  __device__ float Sum(int half) const { return softmax_.Sum(half); }
  __device__ void Write(int half, float sum, const RowResult& result) const {
    WriteHalfRow(result, half, softmax_.Max(half), sum, 0, kDim, values_);
  }

 private:
  using Softmax = SoftmaxRows<kTokens / 8>;

  float scale_log2_;
  Softmax softmax_;
  float factors_[2];
  float scores_[kTokens / 8][4];
  uint32_t weights_[kTokens / 16][4];
  float values_[kDim / 8][4] = {};
};

}  // namespace lockstep::cuda
