#include "model/sampling/row_kernels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace lockstep {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();
constexpr int kLanes = 16;
constexpr int64_t kBlock = 1024;

// Compiled twice from one body, for SSE2 and for AVX2. Not target_clones: its resolver runs before
// a sanitizer's start-up.
#if defined(__x86_64__)
#define LOCKSTEP_AVX2 __attribute__((target("avx2")))
#endif
#define LOCKSTEP_INLINE inline __attribute__((always_inline))

using Vec = float __attribute__((vector_size(32)));
using IntVec = int32_t __attribute__((vector_size(32)));
constexpr int kWidth = 8;

LOCKSTEP_INLINE void Load(const float* from, Vec& to) { std::memcpy(&to, from, sizeof(Vec)); }

// exp of 8 values <= 0; below -87 and NaN give 0. Cephes' expf: x = n ln2 + r, polynomial in r.
LOCKSTEP_INLINE void ExpInPlace(Vec& x) {
  const IntVec in_range = x > -87.0f;
  x = in_range ? x : Vec{};
  const float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const Vec shifted = x * 1.44269504088896341f + kMagic;
  const Vec n = shifted - kMagic;
  Vec r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  Vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const Vec y = p * (r * r) + r + 1.0f;
  IntVec bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits << 23) + 0x3F800000;  // 2^n
  Vec scale;
  std::memcpy(&scale, &bits, sizeof(scale));
  x = in_range ? y * scale : Vec{};
}

LOCKSTEP_INLINE float TreeSum(const Vec& low, const Vec& high) {
  std::array<float, kLanes> lanes;
  std::memcpy(lanes.data(), &low, sizeof(low));
  std::memcpy(lanes.data() + kWidth, &high, sizeof(high));
  for (int step = 1; step < kLanes; step *= 2) {
    for (int i = 0; i < kLanes; i += 2 * step) lanes[i] += lanes[i + step];
  }
  return lanes[0];
}

// One block of at most kBlock elements, a multiple of kLanes.
LOCKSTEP_INLINE float BlockExpSum(const float* x, int64_t count, float max, float scale) {
  Vec low{}, high{};
  for (int64_t i = 0; i < count; i += kLanes) {
    Vec a, b;
    Load(x + i, a);
    Load(x + i + kWidth, b);
    a = (a - max) * scale;
    b = (b - max) * scale;
    ExpInPlace(a);
    ExpInPlace(b);
    low += a;
    high += b;
  }
  return TreeSum(low, high);
}

LOCKSTEP_INLINE float BlockMax(const float* x, int64_t count) {
  Vec best = Vec{} + kNegInf;
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    Vec a;
    Load(x + i, a);
    best = a > best ? a : best;  // NaN compares false
  }
  float max = kNegInf;
  for (int lane = 0; lane < kWidth; ++lane) max = best[lane] > max ? best[lane] : max;
  for (; i < count; ++i) max = x[i] > max ? x[i] : max;
  return max;
}

LOCKSTEP_INLINE bool AnyAbove(const float* x, int64_t count, float threshold) {
  IntVec any{};
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    Vec a;
    Load(x + i, a);
    any |= a > threshold;
  }
  int32_t found = 0;
  for (int lane = 0; lane < kWidth; ++lane) found |= any[lane];
  for (; i < count; ++i) found |= x[i] > threshold;
  return found != 0;
}

struct RowKernels {
  float (*block_exp_sum)(const float*, int64_t, float, float);
  float (*block_max)(const float*, int64_t);
  bool (*any_above)(const float*, int64_t, float);
};

float BaseExpSum(const float* x, int64_t n, float max, float s) {
  return BlockExpSum(x, n, max, s);
}
float BaseMax(const float* x, int64_t n) { return BlockMax(x, n); }
bool BaseAny(const float* x, int64_t n, float threshold) { return AnyAbove(x, n, threshold); }
constexpr RowKernels kBase{BaseExpSum, BaseMax, BaseAny};

#if defined(LOCKSTEP_AVX2)
LOCKSTEP_AVX2 float Avx2ExpSum(const float* x, int64_t n, float max, float s) {
  return BlockExpSum(x, n, max, s);
}
LOCKSTEP_AVX2 float Avx2Max(const float* x, int64_t n) { return BlockMax(x, n); }
LOCKSTEP_AVX2 bool Avx2Any(const float* x, int64_t n, float threshold) {
  return AnyAbove(x, n, threshold);
}
constexpr RowKernels kAvx2{Avx2ExpSum, Avx2Max, Avx2Any};
#endif

const RowKernels& Kernels() {
#if defined(LOCKSTEP_AVX2)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return kAvx2;
#endif
  return kBase;
}

// Keeps the `count` first candidates (order of choice), unsorted.
void KeepFirst(std::vector<Candidate>& candidates, int count) {
  std::nth_element(candidates.begin(), candidates.begin() + count - 1, candidates.end(), Before);
  candidates.resize(count);
}

}  // namespace

Candidate LargestOf(std::span<const float> row) {
  const RowKernels& kernels = Kernels();
  const int64_t size = static_cast<int64_t>(row.size());
  Candidate largest{.value = kNegInf, .token = -1};
  int64_t block_of_largest = -1;
  for (int64_t begin = 0; begin < size; begin += kBlock) {
    const float max = kernels.block_max(row.data() + begin, std::min(kBlock, size - begin));
    if (max > largest.value) {
      largest.value = max;
      block_of_largest = begin;
    }
  }
  if (block_of_largest < 0) return largest;
  int64_t index = block_of_largest;
  while (row[index] != largest.value) ++index;
  largest.token = static_cast<int32_t>(index);
  return largest;
}

double SumOfExps(std::span<const float> row, float max, float inverse_temperature) {
  if (max == kNegInf) return 0.0;
  const RowKernels& kernels = Kernels();
  const int64_t size = static_cast<int64_t>(row.size());
  double sum = 0.0;
  for (int64_t begin = 0; begin < size; begin += kBlock) {
    const int64_t count = std::min(kBlock, size - begin);
    const int64_t whole = count / kLanes * kLanes;
    if (whole == count) {
      sum += kernels.block_exp_sum(row.data() + begin, count, max, inverse_temperature);
      continue;
    }
    std::array<float, kBlock> padded;  // only a row's last block
    std::copy_n(row.data() + begin, count, padded.begin());
    std::fill(padded.begin() + count, padded.begin() + whole + kLanes, kNegInf);
    sum += kernels.block_exp_sum(padded.data(), whole + kLanes, max, inverse_temperature);
  }
  return sum;
}

void SelectLargest(std::span<const float> row, int32_t first_token, int count,
                   std::vector<Candidate>& selected) {
  constexpr int64_t kStride = 64;
  selected.clear();
  if (count <= 0) return;
  const RowKernels& kernels = Kernels();
  const int64_t size = static_cast<int64_t>(row.size());
  const size_t capacity = static_cast<size_t>(count) * 4 + kStride;
  // An element equal to the threshold comes after the `count` kept ones, whose ids are lower:
  // strictly above it is enough.
  float threshold = kNegInf;
  for (int64_t begin = 0; begin < size; begin += kStride) {
    const int64_t end = std::min(begin + kStride, size);
    if (!kernels.any_above(row.data() + begin, end - begin, threshold)) continue;
    for (int64_t i = begin; i < end; ++i) {
      if (row[i] > threshold) {
        selected.push_back({.value = row[i], .token = first_token + static_cast<int32_t>(i)});
      }
    }
    if (selected.size() + kStride > capacity) {
      KeepFirst(selected, count);
      threshold = selected[count - 1].value;
    }
  }
  if (selected.size() > static_cast<size_t>(count)) KeepFirst(selected, count);
  std::sort(selected.begin(), selected.end(), Before);
}

}  // namespace lockstep
