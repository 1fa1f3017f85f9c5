#include "model/checkpoint/random_weights.h"

#include <bit>
#include <cmath>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

// SplitMix64's finalizer (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014;
// constants of Stafford's variant 13).
inline uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

// Normal numbers and zero only; weights never get near binary16's subnormals.
uint16_t Binary16Bits(double value) {
  if (value == 0.0) return 0;
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(value), &exponent);  // [0.5, 1)
  const auto mantissa = static_cast<uint32_t>(std::nearbyint(std::ldexp(fraction, 11)));
  LS_CHECK(exponent >= -13 && exponent <= 16) << value;
  // The mantissa's hidden bit, and a carry out of rounding, add into the exponent.
  const uint32_t magnitude = (static_cast<uint32_t>(exponent + 13) << 10) + mantissa;
  return static_cast<uint16_t>(magnitude | (value < 0 ? 0x8000u : 0u));
}

}  // namespace

uint32_t ElementBits(DType dtype, double value) {
  switch (dtype) {
    case DType::kF32:
      return std::bit_cast<uint32_t>(static_cast<float>(value));
    case DType::kF16:
      return Binary16Bits(value);
    case DType::kBF16:
      return ToBF16(static_cast<float>(value)).bits;
    case DType::kE4M3:
      return ToE4M3(static_cast<float>(value)).bits;
  }
  return 0;
}

uint64_t WeightKey(uint64_t seed, std::string_view tensor_name) {
  uint64_t key = Mix(seed + kGolden);
  for (const char c : tensor_name) key = Mix(key ^ static_cast<unsigned char>(c));
  return key;
}

RandomWeights::RandomWeights(DType dtype, double standard_deviation) : dtype_(dtype) {
  // Four independent uniform integers in [0, 255]: variance 4 * (256^2 - 1) / 12.
  const double scale = standard_deviation / std::sqrt(4.0 * 65535.0 / 12.0);
  for (int sum = 0; sum < kNumSums; ++sum) {
    elements_[sum] = ElementBits(dtype, (sum - (kNumSums - 1) / 2) * scale);
  }
}

template <typename Bits>
void RandomWeights::FillBits(uint64_t key, int64_t first, int64_t count, Bits* dst) const {
  constexpr uint64_t kEvenBytes = 0x00ff00ff00ff00ffu;
  uint64_t counter = key + static_cast<uint64_t>(first / 2) * kGolden;
  for (int64_t i = 0; i < count; i += 2, counter += kGolden) {
    const uint64_t bits = Mix(counter);
    uint64_t sums =
        (bits & kEvenBytes) + ((bits >> 8) & kEvenBytes);  // of byte pairs, 16 bits apart
    sums += sums >> 16;                                    // of four bytes, in bits 0 and 32
    dst[i] = static_cast<Bits>(elements_[sums & 0x7ff]);
    if (i + 1 < count) dst[i + 1] = static_cast<Bits>(elements_[(sums >> 32) & 0x7ff]);
  }
}

void RandomWeights::Fill(uint64_t key, int64_t first, int64_t count, void* dst) const {
  LS_CHECK_EQ(first % 2, 0);
  if (dtype_ == DType::kF32) {
    FillBits(key, first, count, static_cast<uint32_t*>(dst));
  } else {
    FillBits(key, first, count, static_cast<uint16_t*>(dst));
  }
}

}  // namespace lockstep
