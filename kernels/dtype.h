// Element types of weights, activations and KV cache, and exact scalar conversions between them.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "kernels/base/check.h"

namespace lockstep {

// kE4M3: of the KV cache alone.
enum class DType : uint8_t { kF32, kF16, kBF16, kE4M3 };

constexpr int64_t DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kE4M3:
      break;
  }
  return 1;
}
constexpr std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kE4M3:
      return "fp8";
  }
  return "?";
}

// The upper half of an IEEE binary32.
struct BF16 {
  uint16_t bits;
};
// IEEE binary16.
struct F16 {
  uint16_t bits;
};
// Eight bits, of which four are the exponent's and three the mantissa's (Micikevicius et al. 2022,
// "FP8 formats for deep learning"): 448 at most, no infinities, NaN is 0x7f and 0xff. Every one is
// a bf16 and an f16, too.
struct E4M3 {
  uint8_t bits;
};

constexpr float ToFloat(BF16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

// Round to nearest, ties to even; NaN stays NaN (quiet).
constexpr BF16 ToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return BF16{static_cast<uint16_t>((bits >> 16) | 0x0040u)};
  }
  return BF16{static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

// Round to nearest, ties to even; infinity from 65520 on; NaN stays NaN (quiet).
constexpr F16 ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return F16{static_cast<uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return F16{static_cast<uint16_t>(sign | 0x7c00u)};
  if (magnitude < 0x38800000u) {  // below 2^-14: multiples of 2^-24, as numbers beside 0.5f are
    const uint32_t multiples =
        std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    return F16{static_cast<uint16_t>(sign | multiples)};
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return F16{static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13))};
}

// Exact: every binary16 is a binary32.
constexpr float ToFloat(F16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const uint32_t mantissa = value.bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

// Round to nearest, ties to even; what is beyond 448, infinity too, becomes that; NaN stays NaN. As
// cvt.rn.satfinite.e4m3x2.f32 of the PTX ISA does.
constexpr E4M3 ToE4M3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return E4M3{static_cast<uint8_t>(sign | 0x7fu)};
  if (magnitude >= 0x43e00000u) return E4M3{static_cast<uint8_t>(sign | 0x7eu)};
  if (magnitude < 0x3c800000u) {  // below 2^-6: multiples of 2^-9, as numbers beside 2^14 are
    const uint32_t multiples =
        std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14f) - 0x46800000u;
    return E4M3{static_cast<uint8_t>(sign | multiples)};
  }
  const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  return E4M3{static_cast<uint8_t>(sign | ((rounded - (120u << 23)) >> 20))};
}

// Exact.
constexpr float ToFloat(E4M3 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x80u) << 24;
  const uint32_t magnitude = value.bits & 0x7fu;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (magnitude >= 8) return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
  const float multiple = static_cast<float>(magnitude) * 0x1p-9f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(multiple));
}

}  // namespace lockstep
