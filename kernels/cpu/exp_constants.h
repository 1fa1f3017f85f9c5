// Constants of Exp (exp.h), apart so that the instruction-set files need no inline function.
#pragma once

namespace lockstep::cpu {

inline constexpr float kExpZeroBelow = -86.5f;
inline constexpr float kExpInfinityAbove = 88.0f;
inline constexpr float kLog2E = 1.44269504088896341f;
inline constexpr float kLn2High = 0.693359375f;
inline constexpr float kLn2Low = -2.12194440e-4f;
// Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the sum.
inline constexpr float kRoundMagic = 12582912.0f;
inline constexpr float kExpPolynomial[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                           4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};

}  // namespace lockstep::cpu
