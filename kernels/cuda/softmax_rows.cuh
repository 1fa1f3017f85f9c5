// The running softmax of 16 rows in the registers of one warp: what FlashAttention-2 keeps of a row
// beside its values.
#pragma once

#include "kernels/cuda/attention_params.cuh"

namespace lockstep::cuda {

// Scores come in kTiles of 8 tokens, as Mma leaves them: of rows g = lane / 4 ("half 0") and
// g + 8 ("half 1") a lane holds columns 2 (lane % 4) and the next of each tile.
template <int kTiles>
class SoftmaxRows {
 public:
  // A row sees the tokens up to its last.
  __device__ void Begin(int half, int last_token) {
    last_tokens_[half] = last_token;
    max_[half] = -INFINITY;
    sum_[half] = 0.0f;
  }

  // Of tokens begin.., those that a row does not see have no weight.
  __device__ void Mask(int begin, float (&scores)[kTiles][4]) const {
    const int column = begin + threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (column + j * 8 + i % 2 > last_tokens_[i / 2]) scores[j][i] = -INFINITY;
      }
    }
  }

  // The rows' maxima with these scores; what was summed so far is to be multiplied by `factors`.
  // Maxima are finite: every row that counts sees its split's first token.
  __device__ void Raise(const float (&scores)[kTiles][4], float scale_log2, float (&factors)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float max = -INFINITY;
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        max = fmaxf(max, fmaxf(scores[j][half * 2], scores[j][half * 2 + 1]));
      }
      max = fmaxf(max_[half], QuadMax(max) * scale_log2);
      factors[half] = Exp2(max_[half] - max);
      max_[half] = max;
    }
  }

  // Most tiles of a long context have no new maximum, and a factor of 1 changes nothing. All lanes
  // together.
  __device__ static bool Changes(const float (&factors)[2]) {
    return __any_sync(kWholeWarp, ChangesMine(factors));
  }
  __device__ static bool ChangesMine(const float (&factors)[2]) {
    return factors[0] != 1.0f || factors[1] != 1.0f;
  }
  __device__ void RescaleSums(const float (&factors)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) sum_[half] *= factors[half];
  }
  template <int n>
  __device__ static void Rescale(const float (&factors)[2], float (&values)[n][4]) {
#pragma unroll
    for (int j = 0; j < n; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[j][i] *= factors[i / 2];
    }
  }

  // Scores become weights relative to the rows' maxima.
  __device__ void Soften(float (&scores)[kTiles][4], float scale_log2) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& first = scores[j][half * 2];
        float& second = scores[j][half * 2 + 1];
        first = Exp2(fmaf(first, scale_log2, -max_[half]));
        second = Exp2(fmaf(second, scale_log2, -max_[half]));
        sum_[half] += first + second;
      }
    }
  }

  // As the first factor of a product with values, of T.
  template <typename T>
  __device__ static void PackWeights(const float (&weights)[kTiles][4],
                                     uint32_t (&packed)[kTiles / 2][4]) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        packed[j / 2][j % 2 * 2 + half] = Pack<T>(weights[j][half * 2], weights[j][half * 2 + 1]);
      }
    }
  }

  __device__ int LastToken(int half) const { return last_tokens_[half]; }
  __device__ float Max(int half) const { return max_[half]; }  // log2
  // Of weights. All lanes together.
  __device__ float Sum(int half) const {
    const float sum = sum_[half] + __shfl_xor_sync(kWholeWarp, sum_[half], 1);
    return sum + __shfl_xor_sync(kWholeWarp, sum, 2);
  }

 private:
  // Over the four lanes that share a row.
  __device__ static float QuadMax(float x) {
    x = fmaxf(x, __shfl_xor_sync(kWholeWarp, x, 1));
    return fmaxf(x, __shfl_xor_sync(kWholeWarp, x, 2));
  }

  int last_tokens_[2];
  float max_[2];
  float sum_[2];  // this lane's share
};

// One split of a row: its statistics and values of columns first_column.., as a lane holds them.
template <int n>
__device__ void WriteHalfRow(const RowResult& result, int half, float max, float sum,
                             int first_column, int head_dim, const float (&values)[n][4]) {
  const int lane = threadIdx.x % kWarpSize;
  if (first_column == 0 && lane % 4 == 0) result.WriteStats(max, sum);
  const float scale = result.Scale(sum);
#pragma unroll
  for (int j = 0; j < n; ++j) {
    const int d = first_column + j * 8;
    if (d >= head_dim) continue;
    result.WritePair(d + lane % 4 * 2, values[j][half * 2] * scale,
                     values[j][half * 2 + 1] * scale);
  }
}

}  // namespace lockstep::cuda
