// Rotary position embedding of q and k and, in the same pass, the write of k and v to the paged
// cache: every element of qkv is read once (of heads that are normalized, twice), and q's are
// written back. Nobody reads k there again.
#pragma once

#include "kernels/backend_args.h"
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

// Elements of such a row; scale: KvCacheView's, of e4m3 caches alone.
template <int n, typename T>
__device__ inline void StoreCached(T* to, Floats<n> x, float scale) {
  if constexpr (std::is_same_v<T, E4M3>) {
    const float inverse = 1.0f / scale;
#pragma unroll
    for (int e = 0; e < n; ++e) x.of[e] *= inverse;
  }
  Store(to, x);
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
  const float scale = is_rotated ? cache.k_scale : cache.v_scale;
  StoreCached(row + i, first, scale);
  StoreCached(row + half + i, second, scale);
}

// Elements i.. of a head, with its bias.
template <int n, typename G>
__device__ inline Floats<n> LoadBiased(const G* head, const float* bias, int i) {
  Floats<n> x = Load<n>(head + i);
  if (bias == nullptr) return x;
  const Floats<n> addends = Load<n>(bias + i);
#pragma unroll
  for (int e = 0; e < n; ++e) x.of[e] += addends.of[e];
  return x;
}

template <int n>
__device__ inline void Scale(Floats<n>& x, float scale, const Floats<n>& weight) {
#pragma unroll
  for (int e = 0; e < n; ++e) x.of[e] = x.of[e] * scale * weight.of[e];
}

// Of a warp's lanes together: 1 / sqrt(mean(x^2) + eps) of a head with its bias.
template <int n, typename G>
__device__ inline float HeadScale(const G* head, const float* bias, int head_dim, float eps) {
  float sum = 0.0f;
  for (int i = static_cast<int>(threadIdx.x) % kWarpSize * n; i < head_dim; i += kWarpSize * n) {
    const Floats<n> x = LoadBiased<n>(head, bias, i);
#pragma unroll
    for (int e = 0; e < n; ++e) sum = fmaf(x.of[e], x.of[e], sum);
  }
  return 1.0f / sqrtf(WarpSum(sum) / static_cast<float>(head_dim) + eps);
}

// The same of heads that are adjusted first: a block for a token (x) and some of its heads (y), a
// warp to a head. One that is normalized is read twice, the second time from near by.
template <int n, typename G, typename T>
__global__ void __launch_bounds__(kRopeThreads)
    AdjustRopeAndWriteKvKernel(G* qkv, HeadAdjustments adjust, int num_heads, const float* cos,
                               const float* sin, const int32_t* positions, const int64_t* slots,
                               KvCacheView cache) {
  LetLaterKernelsBegin();
  constexpr int kHeads = kRopeThreads / kWarpSize;
  const int64_t token = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y) * kHeads + threadIdx.x / kWarpSize;
  const int half = cache.head_dim / 2;
  const int num_rotated = num_heads + cache.num_kv_heads;
  const int64_t slot = LoadFromCache2(slots + token);
  const int64_t angle = int64_t{LoadFromCache2(positions + token)} * half;
  WaitForEarlierKernels();
  if (head >= num_rotated + cache.num_kv_heads || (head >= num_heads && slot < 0)) return;

  const bool is_query = head < num_heads;
  const bool is_rotated = head < num_rotated;
  G* const x = qkv + (token * (num_rotated + cache.num_kv_heads) + head) * cache.head_dim;
  const float* const bias =
      adjust.bias == nullptr ? nullptr : adjust.bias + int64_t{head} * cache.head_dim;
  const float* const norm = is_query ? adjust.q_norm : is_rotated ? adjust.k_norm : nullptr;
  const float norm_scale =
      norm == nullptr ? 1.0f : HeadScale<n>(x, bias, cache.head_dim, adjust.eps);
  T* const row = is_query     ? nullptr
                 : is_rotated ? CachedRow<T>(cache.k, cache, slot, head - num_heads)
                              : CachedRow<T>(cache.v, cache, slot, head - num_rotated);
  const float cache_scale = is_rotated ? cache.k_scale : cache.v_scale;
  for (int i = static_cast<int>(threadIdx.x) % kWarpSize * n; i < half; i += kWarpSize * n) {
    Floats<n> first = LoadBiased<n>(x, bias, i);
    Floats<n> second = LoadBiased<n>(x, bias, half + i);
    if (norm != nullptr) {
      Scale(first, norm_scale, Load<n>(norm + i));
      Scale(second, norm_scale, Load<n>(norm + half + i));
    }
    if (is_rotated) Rotate(first, second, Load<n>(cos + angle + i), Load<n>(sin + angle + i));
    if (is_query) {
      Store(x + i, first);
      Store(x + half + i, second);
    } else {
      StoreCached(row + i, first, cache_scale);
      StoreCached(row + half + i, second, cache_scale);
    }
  }
}

}  // namespace lockstep::cuda
