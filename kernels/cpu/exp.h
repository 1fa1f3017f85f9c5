// The exponential of every CPU body, in its scalar form; the vector form (elementwise_kernels.h)
// makes the same operations in the same order and so gives the same bits.
//
// Range reduction x = n ln2 + r after Cody and Waite, polynomial from the Cephes library (expf, S.
// Moshier); within 2 units in the last place. Zero below kExpZeroBelow and infinity above
// kExpInfinityAbove, so that 2^n is always a normal number; NaN stays NaN.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/exp_constants.h"

namespace lockstep::cpu {

inline float Exp(float x) {
  if (x != x) return x;
  if (x < kExpZeroBelow) return 0.0f;
  if (x > kExpInfinityAbove) return std::numeric_limits<float>::infinity();
  const float shifted = std::fma(x, kLog2E, kRoundMagic);
  const float n = shifted - kRoundMagic;
  const float r = std::fma(n, -kLn2Low, std::fma(n, -kLn2High, x));
  float p = kExpPolynomial[0];
  for (int i = 1; i < 6; ++i) p = std::fma(p, r, kExpPolynomial[i]);
  p = std::fma(p, r * r, r) + 1.0f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) +
                              (std::bit_cast<uint32_t>(shifted) << 23));
}

}  // namespace lockstep::cpu
