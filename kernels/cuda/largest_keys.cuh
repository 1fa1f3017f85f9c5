// The largest of many keys, exactly: a logit and its index as one integer, selected by a block of
// threads digit by digit (radix selection: histogram the leading digit, go on within the bin where
// the k-th largest lies).
#pragma once

#include <cstdint>

#include "kernels/cuda/device.cuh"

namespace lockstep::cuda {

__device__ inline float NegativeInfinity() { return __uint_as_float(0xff800000u); }
// As logits count: NaN as -infinity, +infinity as the largest finite number.
__device__ inline float Bounded(float value) {
  constexpr float kLargestFloat = 3.402823466e+38f;
  return value != value ? NegativeInfinity() : fminf(value, kLargestFloat);
}

// Larger keys come first in the order of choice: larger value, then lower index. All different; 0
// is less than every logit's.
using LogitKey = uint64_t;

__device__ inline LogitKey KeyOf(float value, uint32_t index) {
  const uint32_t bits = __float_as_uint(value + 0.0f);  // -0 and 0 are equal
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return LogitKey{ordered} << 32 | (0xffffffffu - index);
}
// 0 for -infinity.
__device__ inline LogitKey KeyOrZero(float value, uint32_t index) {
  return value > NegativeInfinity() ? KeyOf(value, index) : 0;
}
__device__ inline float ValueOf(LogitKey key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  return __uint_as_float((ordered & 0x80000000u) != 0 ? ordered ^ 0x80000000u : ~ordered);
}
__device__ inline uint32_t IndexOf(LogitKey key) {
  return 0xffffffffu - static_cast<uint32_t>(key);
}

__device__ inline LogitKey WarpMaxKey(LogitKey key) {
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    const LogitKey other = __shfl_xor_sync(kWholeWarp, key, offset);
    key = other > key ? other : key;
  }
  return key;
}

// The same on every thread of a block of whole warps.
__device__ inline LogitKey BlockMaxKey(LogitKey key) {
  __shared__ LogitKey of_warp[kWarpSize];
  const int lane = threadIdx.x % kWarpSize;
  const int warps = blockDim.x / kWarpSize;
  key = WarpMaxKey(key);
  if (lane == 0) of_warp[threadIdx.x / kWarpSize] = key;
  __syncthreads();
  const LogitKey largest = WarpMaxKey(lane < warps ? of_warp[lane] : LogitKey{0});
  __syncthreads();  // of_warp may be written again
  return largest;
}

constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;

// Where a selection stands: the wanted keys are those above the bin of `bound` in `mask`'s leading
// bits, and the `remaining` largest of that bin.
struct KeySearch {
  LogitKey bound;
  LogitKey mask;
  int remaining;
  bool ends;
};

// By one warp, which sums counts[] from the top: narrows the search to the digit where the
// remaining-th largest lies.
__device__ inline void FindDigit(const int* counts, int shift, KeySearch& search) {
  constexpr int kPerLane = kDigits / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int remaining = search.remaining;
  const int top = kDigits - 1 - lane * kPerLane;  // lanes go downwards
  int own = 0;
  for (int i = 0; i < kPerLane; ++i) own += counts[top - i];
  int upto = own;
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const int other = __shfl_up_sync(kWholeWarp, upto, offset);
    if (lane >= offset) upto += other;
  }
  const int all = __shfl_sync(kWholeWarp, upto, kWarpSize - 1);
  __syncwarp();            // all have read `search`, which one will write
  if (all <= remaining) {  // only at the first digit
    if (lane == 0) search.ends = true;
    return;
  }
  int above = upto - own;
  if (above >= remaining || upto < remaining) return;
  int digit = top;
  while (above + counts[digit] < remaining) above += counts[digit--];
  search.bound |= static_cast<LogitKey>(digit) << shift;
  search.mask |= LogitKey{kDigits - 1} << shift;
  search.remaining = remaining - above;
  search.ends = counts[digit] == remaining - above;
}

// By all threads of a block of whole warps: the least of the k >= 1 largest keys, or, rounded down,
// a number that no others reach; 1 if there are at most k keys above 0. key_at(i) for i in [0,
// num_keys) is called several times.
template <typename KeyAt>
__device__ LogitKey LeastOfLargest(int num_keys, int k, const KeyAt& key_at) {
  __shared__ int counts[kDigits];
  __shared__ KeySearch search;
  if (threadIdx.x == 0) search = {0, 0, k, false};
  for (int shift = 64 - kDigitBits; shift >= 0; shift -= kDigitBits) {
    for (int i = threadIdx.x; i < kDigits; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    const KeySearch now = search;
    for (int i = threadIdx.x; i < num_keys; i += blockDim.x) {
      const LogitKey key = key_at(i);
      if (key == 0 || (key & now.mask) != now.bound) continue;
      atomicAdd(&counts[static_cast<int>(key >> shift) & (kDigits - 1)], 1);
    }
    __syncthreads();
    if (threadIdx.x < kWarpSize) FindDigit(counts, shift, search);
    __syncthreads();
    if (search.ends) break;
  }
  const LogitKey bound = search.bound;
  __syncthreads();  // search may be written again
  return bound > 0 ? bound : 1;
}

// By all threads of a block, which meet again before the next time: copies the k >= 1 largest keys,
// in any order; how many there are.
template <typename KeyAt>
__device__ int CopyLargest(int num_keys, int k, const KeyAt& key_at, LogitKey* largest) {
  __shared__ int num_copied;
  if (threadIdx.x == 0) num_copied = 0;
  const LogitKey bound = LeastOfLargest(num_keys, k, key_at);
  for (int i = threadIdx.x; i < num_keys; i += blockDim.x) {
    const LogitKey key = key_at(i);
    if (key >= bound) largest[atomicAdd(&num_copied, 1)] = key;
  }
  __syncthreads();
  return num_copied;
}

}  // namespace lockstep::cuda
