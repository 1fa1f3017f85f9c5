// Rotary position embedding of q and k and, in the same pass, the write of k and v to the paged
// cache: every element of qkv is read once, and q's are written back. Nobody reads k there again.
#pragma once

#include "kernels/cuda/vectors.cuh"
#include "kernels/kv_cache_view.h"

namespace lockstep::cuda {

constexpr int kRopeThreads = 256;

// Element 0 of a head's row of a token in the cache's keys or values.
template <typename T>
__device__ inline T* CachedRow(void* side, const KvCacheView& cache, int64_t slot, int head) {
  const int64_t block = slot / cache.block_size;
  const int64_t offset = slot - block * cache.block_size;
  return static_cast<T*>(side) +
         ((block * cache.num_kv_heads + head) * cache.block_size + offset) * cache.head_dim;
}

template <int n>
__device__ inline void Rotate(Floats<n>& first, Floats<n>& second, const Floats<n>& cos,
                              const Floats<n>& sin) {
#pragma unroll
  for (int e = 0; e < n; ++e) {
    const float x = first.of[e];
    const float y = second.of[e];
    first.of[e] = fmaf(x, cos.of[e], -(y * sin.of[e]));
    second.of[e] = fmaf(y, cos.of[e], x * sin.of[e]);
  }
}

// A block for a token (x) and some of its pairs of vectors (y): elements i.. and half + i.. of one
// head, be it of q (rotated), of k (rotated and cached) or of v (cached). What the step's kernels
// do not write, angles above all, is read while the product before still runs.
template <int n, typename G, typename T>
__global__ void __launch_bounds__(kRopeThreads)
    RopeAndWriteKvKernel(G* qkv, int num_heads, const float* cos, const float* sin,
                         const int32_t* positions, const int64_t* slots, KvCacheView cache) {
  LetLaterKernelsBegin();
  const int64_t token = blockIdx.x;
  const int half = cache.head_dim / 2;
  const int vectors = half / n;  // of half a head
  const int pair = static_cast<int>(blockIdx.y) * kRopeThreads + threadIdx.x;
  const int head = pair / vectors;
  const int i = (pair - head * vectors) * n;
  const int num_rotated = num_heads + cache.num_kv_heads;
  const bool is_head = head < num_rotated + cache.num_kv_heads;
  const bool is_rotated = head < num_rotated;
  const int64_t slot = LoadFromCache2(slots + token);
  Floats<n> cosines = {};
  Floats<n> sines = {};
  if (is_rotated) {
    const int64_t angle = int64_t{LoadFromCache2(positions + token)} * half + i;
    cosines = Load<n>(cos + angle);
    sines = Load<n>(sin + angle);
  }
  WaitForEarlierKernels();
  if (!is_head || (head >= num_heads && slot < 0)) return;

  G* x = qkv + (token * (num_rotated + cache.num_kv_heads) + head) * cache.head_dim + i;
  Floats<n> first = Load<n>(x);
  Floats<n> second = Load<n>(x + half);
  if (is_rotated) Rotate(first, second, cosines, sines);
  if (head < num_heads) {
    Store(x, first);
    Store(x + half, second);
    return;
  }
  T* row = is_rotated ? CachedRow<T>(cache.k, cache, slot, head - num_heads)
                      : CachedRow<T>(cache.v, cache, slot, head - num_rotated);
  Store(row + i, first);
  Store(row + half + i, second);
}

}  // namespace lockstep::cuda
