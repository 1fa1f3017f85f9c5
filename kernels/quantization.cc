#include "kernels/quantization.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

constexpr float kSmallest = 0x1p-100f;
constexpr int kSquareLanes = 16;

// The first element of largest magnitude; a NaN counts as larger than any number.
int LargestMagnitude(const float* x, int count) {
  int best = 0;
  for (int i = 1; i < count; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu;
    if (magnitude > (std::bit_cast<uint32_t>(x[best]) & 0x7fffffffu)) best = i;
  }
  return best;
}

float RoundedToBF16(float value) { return ToFloat(ToBF16(value)); }

// Sum of squared errors.
float RoundWeights(const float* w, int count, float scale, int lowest, int highest, int8_t* q) {
  const float inverse = 1.0f / scale;
  std::array<float, kSquareLanes> lanes = {};
  for (int k = 0; k < count; ++k) {
    const float rounded = std::nearbyint(w[k] * inverse);
    const float clamped =
        std::min(std::max(rounded, static_cast<float>(lowest)), static_cast<float>(highest));
    q[k] = static_cast<int8_t>(clamped);
    const float product = clamped * scale;
    const float error = w[k] - product;
    const float square = error * error;
    lanes[static_cast<size_t>(k % kSquareLanes)] += square;
  }
  for (size_t width = kSquareLanes; width > 1; width /= 2) {
    for (size_t i = 0; i < width / 2; ++i) lanes[i] = lanes[2 * i] + lanes[2 * i + 1];
  }
  return lanes[0];
}

}  // namespace

std::string_view QuantizationName(Quantization quantization) {
  switch (quantization) {
    case Quantization::kNone:
      return "none";
    case Quantization::kInt8:
      return "int8";
    case Quantization::kInt4:
      return "int4";
    case Quantization::kFp8:
      return "fp8";
  }
  return "?";
}

std::optional<Quantization> QuantizationOf(std::string_view name) {
  for (const Quantization quantization :
       {Quantization::kNone, Quantization::kInt8, Quantization::kInt4, Quantization::kFp8}) {
    if (name == QuantizationName(quantization)) return quantization;
  }
  return std::nullopt;
}

int64_t QuantizedBytes(Quantization quantization, int64_t num_rows, int64_t slice_k,
                       int64_t num_slices) {
  if (quantization == Quantization::kFp8) {
    return num_rows * (num_slices * slice_k + static_cast<int64_t>(sizeof(float)));
  }
  const QuantizedGroups groups{slice_k, QuantizedGroup(quantization)};
  const int64_t slice_bytes = (slice_k * QuantizedBits(quantization) + 7) / 8 +
                              groups.per_slice() * static_cast<int64_t>(sizeof(BF16));
  return num_rows * num_slices * slice_bytes;
}

BF16 QuantizeWeightGroup(const float* w, int count, Quantization quantization, int8_t* q) {
  LS_CHECK(count >= 1 && count <= kMaxQuantizedGroup) << count;
  const float largest = w[LargestMagnitude(w, count)];
  std::fill_n(q, count, int8_t{0});
  if (!std::isfinite(largest)) return ToBF16(std::numeric_limits<float>::quiet_NaN());
  if (std::abs(largest) < kSmallest) return BF16{0};
  if (quantization == Quantization::kInt8) {
    const float scale = RoundedToBF16(std::abs(largest) / 127.0f);
    RoundWeights(w, count, scale, -127, 127, q);
    return ToBF16(scale);
  }
  float best_scale = 0.0f;
  float best_error = 0.0f;
  for (const float divisor : {-8.0f, -7.5f, -8.5f}) {
    std::array<int8_t, kMaxQuantizedGroup> rounded;
    const float scale = RoundedToBF16(largest / divisor);
    const float error = RoundWeights(w, count, scale, -8, 7, rounded.data());
    if (best_scale != 0.0f && !(error < best_error)) continue;
    best_scale = scale;
    best_error = error;
    std::copy_n(rounded.data(), count, q);
  }
  return ToBF16(best_scale);
}

float QuantizeActivationGroup(const float* x, int count, int8_t* q) {
  const float amax = std::abs(x[LargestMagnitude(x, count)]);
  std::fill_n(q, count, int8_t{0});
  if (!std::isfinite(amax)) return std::numeric_limits<float>::quiet_NaN();
  if (amax < kSmallest) return 0.0f;
  const float inverse = 127.0f / amax;
  for (int k = 0; k < count; ++k) q[k] = static_cast<int8_t>(std::nearbyint(x[k] * inverse));
  return amax / 127.0f;
}

}  // namespace lockstep
