// Kernels over rows: exponential, normalisation, activation, rotation and conversions, over a
// vector policy.
#pragma once

#include <cstdint>

#include "kernels/cpu/exp_constants.h"
#include "kernels/cpu/partial_vector.h"
#include "kernels/cpu/vector_kernels.h"

namespace lockstep::cpu {
namespace {

// The same operations as Exp in exp.h, in the same order.
template <class V>
[[gnu::always_inline]] inline typename V::F VectorExp(typename V::F x) {
  using F = typename V::F;
  const F shifted = V::Fma(x, V::Set(kLog2E), V::Set(kRoundMagic));
  const F n = V::Sub(shifted, V::Set(kRoundMagic));
  const F r = V::Fma(n, V::Set(-kLn2Low), V::Fma(n, V::Set(-kLn2High), x));
  F p = V::Set(kExpPolynomial[0]);
#pragma GCC unroll 8
  for (int i = 1; i < 6; ++i) p = V::Fma(p, r, V::Set(kExpPolynomial[i]));
  p = V::Add(V::Fma(p, V::Mul(r, r), r), V::Set(1.0f));
  F y = V::ScaleByPowerOfTwo(p, shifted);
  y = V::SelectLess(x, V::Set(kExpZeroBelow), V::Zero(), y);
  y = V::SelectLess(V::Set(kExpInfinityAbove), x, V::Set(__builtin_inff()), y);
  return V::SelectNan(x, x, y);
}

// ((l0 + l1) + (l2 + l3)) + ... of 16 lanes held in 16 / kWidth vectors.
template <class V>
float SumOfLanes(const typename V::F (&lanes)[16 / V::kWidth]) {
  float sums[16 / V::kWidth];
  for (int v = 0; v < 16 / V::kWidth; ++v) sums[v] = V::TreeSum(lanes[v]);
  for (int count = 8 / V::kWidth; count > 0; count /= 2) {
    for (int i = 0; i < count; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
  }
  return sums[0];
}

// Calls step(offset, lanes) for whole vectors, then once for the rest.
template <class V, class Step>
void ForEachVector(int64_t count, Step step) {
  int64_t i = 0;
  for (; i + V::kWidth <= count; i += V::kWidth) step(i, V::kWidth);
  if (i < count) step(i, static_cast<int>(count - i));
}

template <class V>
void AddRmsNorm(float* residual, const float* delta, const float* weight, float eps, int64_t hidden,
                float* out) {
  using F = typename V::F;
  constexpr int kVecs = 16 / V::kWidth;
  F lanes[kVecs];
  for (int v = 0; v < kVecs; ++v) lanes[v] = V::Zero();
  for (int64_t i = 0; i < hidden; i += 16) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      const int64_t at = i + v * V::kWidth;
      if (at >= hidden) break;
      const int n = hidden - at < V::kWidth ? static_cast<int>(hidden - at) : V::kWidth;
      F x = LoadUpTo<V>(residual + at, n);
      if (delta != nullptr) {
        x = V::Add(x, LoadUpTo<V>(delta + at, n));
        StoreUpTo<V>(residual + at, x, n);
      }
      lanes[v] = V::Fma(x, x, lanes[v]);
    }
  }
  const float mean = SumOfLanes<V>(lanes) / static_cast<float>(hidden);
  const F scale = V::Div(V::Set(1.0f), V::Sqrt(V::Set(mean + eps)));
  ForEachVector<V>(hidden, [=](int64_t i, int n) {
    const F x = V::Mul(LoadUpTo<V>(residual + i, n), scale);
    StoreUpTo<V>(out + i, V::Mul(x, LoadUpTo<V>(weight + i, n)), n);
  });
}

template <class V>
void SiluMul(const float* gate, const float* up, int64_t count, float* out) {
  using F = typename V::F;
  ForEachVector<V>(count, [=](int64_t i, int n) {
    const F x = LoadUpTo<V>(gate + i, n);
    const F silu = V::Div(x, V::Add(V::Set(1.0f), VectorExp<V>(V::Sub(V::Zero(), x))));
    StoreUpTo<V>(out + i, V::Mul(silu, LoadUpTo<V>(up + i, n)), n);
  });
}

template <class V>
void Rotate(float* x, const float* cos, const float* sin, int half) {
  using F = typename V::F;
  ForEachVector<V>(half, [=](int64_t i, int n) {
    const F first = LoadUpTo<V>(x + i, n);
    const F second = LoadUpTo<V>(x + half + i, n);
    const F c = LoadUpTo<V>(cos + i, n);
    const F s = LoadUpTo<V>(sin + i, n);
    StoreUpTo<V>(x + i, V::Fma(first, c, V::Negate(V::Mul(second, s))), n);
    StoreUpTo<V>(x + half + i, V::Fma(second, c, V::Mul(first, s)), n);
  });
}

template <class V>
void AddInto(float* dst, const float* src, int64_t count) {
  ForEachVector<V>(count, [=](int64_t i, int n) {
    StoreUpTo<V>(dst + i, V::Add(LoadUpTo<V>(dst + i, n), LoadUpTo<V>(src + i, n)), n);
  });
}

template <class V>
void WidenBf16(const uint16_t* src, int64_t count, float* dst) {
  ForEachVector<V>(count, [=](int64_t i, int n) {
    StoreUpTo<V>(dst + i, n == V::kWidth ? V::LoadBf16(src + i) : V::LoadFirstBf16(src + i, n), n);
  });
}

template <class V>
void WidenE4m3(const uint8_t* src, int64_t count, uint16_t* dst) {
  constexpr int kStep = V::kE4m3Step;
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) V::WidenE4m3(src + i, dst + i);
  if (i == count) return;
  uint8_t rest[kStep] = {};
  uint16_t wide[kStep];
  for (int64_t j = i; j < count; ++j) rest[j - i] = src[j];
  V::WidenE4m3(rest, wide);
  for (int64_t j = i; j < count; ++j) dst[j] = wide[j - i];
}

template <class V>
void RoundBf16(const float* src, int64_t count, uint16_t* dst) {
  ForEachVector<V>(count, [=](int64_t i, int n) {
    alignas(64) float rounded[V::kWidth];
    V::Store(rounded, V::RoundToBf16(LoadUpTo<V>(src + i, n)));
    for (int j = 0; j < n; ++j) {
      dst[i + j] = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, rounded[j]) >> 16);
    }
  });
}

}  // namespace
}  // namespace lockstep::cpu
