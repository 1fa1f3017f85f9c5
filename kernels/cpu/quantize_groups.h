// Rounding groups of weights and activations, as kernels/quantization.h says, 16 lanes at a time in
// the compiler's own vectors: one text for every instruction set. Lanes never meet but in the error
// of 4-bit weights, whose order is prescribed.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/quantized_table.h"

namespace lockstep::cpu {
namespace {

constexpr int kGroupLanes = 16;
constexpr int kGroupVectors = 4;  // hold the largest group
typedef float GroupF __attribute__((vector_size(64)));
typedef int32_t GroupI __attribute__((vector_size(64)));

constexpr uint32_t kSmallestBits = 0x0d800000u;  // 2^-100
constexpr uint32_t kInfinityBits = 0x7f800000u;

// A group, padded with zeros.
struct Group {
  GroupF x[kGroupVectors];
  int num_vectors;

  [[gnu::always_inline]] Group(const float* from, int count)
      : num_vectors((count + kGroupLanes - 1) / kGroupLanes) {
    if (count % kGroupLanes == 0) {
      std::memcpy(x, from, static_cast<size_t>(count) * sizeof(float));
    } else {
      std::memset(x, 0, sizeof(x));
      std::memcpy(x, from, static_cast<size_t>(count) * sizeof(float));
    }
  }
};

// v with lanes i and i ^ kDistance exchanged.
template <int kDistance, typename Vector>
[[gnu::always_inline]] inline void ExchangeLanes(const Vector& v, Vector& out) {
  GroupI from;
  for (int i = 0; i < kGroupLanes; ++i) from[i] = i ^ kDistance;
  out = __builtin_shuffle(v, from);
}

// All lanes become combine(combine of the even halves, ...): a binary tree of neighbours.
template <typename Vector, typename Combine>
[[gnu::always_inline]] inline void ReduceLanes(Vector& v, Combine combine) {
  Vector other;
  ExchangeLanes<1>(v, other);
  combine(v, other);
  ExchangeLanes<2>(v, other);
  combine(v, other);
  ExchangeLanes<4>(v, other);
  combine(v, other);
  ExchangeLanes<8>(v, other);
  combine(v, other);
}

// Bits of the largest magnitude; NaN beats infinity beats numbers.
[[gnu::always_inline]] inline uint32_t LargestMagnitudeBits(const Group& group) {
  GroupI most = {};
  for (int i = 0; i < group.num_vectors; ++i) {
    const GroupI magnitude = ((GroupI)group.x[i]) & 0x7fffffff;
    most = magnitude > most ? magnitude : most;
  }
  ReduceLanes(most, [](GroupI& a, const GroupI& b) { a = a > b ? a : b; });
  return static_cast<uint32_t>(most[0]);
}

// The first element of that magnitude.
[[gnu::always_inline]] inline float FirstOfMagnitude(const Group& group, uint32_t largest) {
  GroupI lane;
  for (int i = 0; i < kGroupLanes; ++i) lane[i] = i;
  GroupI first = GroupI{} + kGroupVectors * kGroupLanes;
  for (int i = 0; i < group.num_vectors; ++i) {
    const GroupI magnitude = ((GroupI)group.x[i]) & 0x7fffffff;
    const GroupI here = magnitude == static_cast<int32_t>(largest)
                            ? lane + i * kGroupLanes
                            : GroupI{} + kGroupVectors * kGroupLanes;
    first = here < first ? here : first;
  }
  ReduceLanes(first, [](GroupI& a, const GroupI& b) { a = a < b ? a : b; });
  return group.x[first[0] / kGroupLanes][first[0] % kGroupLanes];
}

// To nearest even, for magnitudes below 2^22.
[[gnu::always_inline]] inline void RoundToInteger(const GroupF& x, GroupF& out) {
  constexpr float kShift = 0x1.8p23f;
  out = (x + kShift) - kShift;
}

inline float FloatOfBits(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// As ToBF16, of a finite number.
inline uint16_t RoundBitsToBf16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

[[gnu::always_inline]] inline void StoreBytes(const GroupF& rounded, int8_t* out) {
  typedef int8_t Bytes __attribute__((vector_size(kGroupLanes)));
  const Bytes bytes = __builtin_convertvector(__builtin_convertvector(rounded, GroupI), Bytes);
  std::memcpy(out, &bytes, sizeof(bytes));
}

[[gnu::always_inline]] inline void RoundAndClamp(const GroupF& scaled, float lowest, float highest,
                                                 GroupF& rounded) {
  RoundToInteger(scaled, rounded);
  const GroupF low = GroupF{} + lowest;
  const GroupF high = GroupF{} + highest;
  rounded = rounded < low ? low : rounded;
  rounded = rounded > high ? high : rounded;
}

// Writes num_vectors x 16 bytes of q.
[[gnu::always_inline]] inline void RoundGroup(const Group& group, float scale, float lowest,
                                              float highest, int8_t* q) {
  const float inverse = 1.0f / scale;
  for (int i = 0; i < group.num_vectors; ++i) {
    GroupF rounded;
    RoundAndClamp(group.x[i] * inverse, lowest, highest, rounded);
    StoreBytes(rounded, q + i * kGroupLanes);
  }
}

[[gnu::always_inline]] inline float SumOfSquaredErrors(const Group& group, float scale,
                                                       float lowest, float highest) {
  const float inverse = 1.0f / scale;
  GroupF errors = {};
  for (int i = 0; i < group.num_vectors; ++i) {
    GroupF rounded;
    RoundAndClamp(group.x[i] * inverse, lowest, highest, rounded);
    const GroupF error = group.x[i] - rounded * scale;
    errors += error * error;
  }
  ReduceLanes(errors, [](GroupF& a, const GroupF& b) { a += b; });
  return errors[0];
}

// Scale and zeros of a group that is not rounded at all; true if this is one.
inline bool IsDegenerate(uint32_t largest, int count, int8_t* q, uint16_t& scale) {
  if (largest >= kSmallestBits && largest < kInfinityBits) return false;
  std::memset(q, 0, static_cast<size_t>(count));
  scale = largest < kSmallestBits ? 0 : 0x7fc0;
  return true;
}

inline uint16_t QuantizeInt8(const float* w, int count, int8_t* q) {
  const Group group(w, count);
  const uint32_t largest = LargestMagnitudeBits(group);
  uint16_t scale;
  if (IsDegenerate(largest, count, q, scale)) return scale;
  scale = RoundBitsToBf16(FloatOfBits(largest) / 127.0f);
  int8_t rounded[kGroupVectors * kGroupLanes];
  RoundGroup(group, FloatOfBits(uint32_t{scale} << 16), -127.0f, 127.0f, rounded);
  std::memcpy(q, rounded, static_cast<size_t>(count));
  return scale;
}

inline uint16_t QuantizeInt4(const float* w, int count, int8_t* q) {
  const Group group(w, count);
  const uint32_t largest = LargestMagnitudeBits(group);
  uint16_t best_scale = 0;
  if (IsDegenerate(largest, count, q, best_scale)) return best_scale;
  const float signed_largest = FirstOfMagnitude(group, largest);
  const float divisors[] = {-8.0f, -7.5f, -8.5f};
  float best_error = 0.0f;
  for (int i = 0; i < 3; ++i) {
    const uint16_t scale = RoundBitsToBf16(signed_largest / divisors[i]);
    const float error = SumOfSquaredErrors(group, FloatOfBits(uint32_t{scale} << 16), -8.0f, 7.0f);
    if (i > 0 && !(error < best_error)) continue;
    best_scale = scale;
    best_error = error;
  }
  int8_t rounded[kGroupVectors * kGroupLanes];
  RoundGroup(group, FloatOfBits(uint32_t{best_scale} << 16), -8.0f, 7.0f, rounded);
  std::memcpy(q, rounded, static_cast<size_t>(count));
  return best_scale;
}

// One row's group into its tile: quads go quad_stride bytes apart.
[[gnu::always_inline]] inline void QuantizeRow(const float* x, int count, int zero, int quad_stride,
                                               float& scale, int32_t& offset, char* quads) {
  const Group group(x, count);
  const uint32_t largest = LargestMagnitudeBits(group);
  alignas(64) int8_t q[kGroupVectors * kGroupLanes];
  const int num_quads = static_cast<int>(PaddedGroup(count) / 4);
  if (largest < kSmallestBits || largest >= kInfinityBits) {
    scale = largest < kSmallestBits ? 0.0f : __builtin_nanf("");
    offset = 0;
    for (int i = 0; i < num_quads; ++i) std::memset(quads + i * quad_stride, 0, 4);
    return;
  }
  const float amax = FloatOfBits(largest);
  const float inverse = 127.0f / amax;
  scale = amax / 127.0f;
  GroupI sums = {};
  for (int i = 0; i < group.num_vectors; ++i) {
    GroupF rounded;
    RoundToInteger(group.x[i] * inverse, rounded);
    sums += __builtin_convertvector(rounded, GroupI);
    StoreBytes(rounded, q + i * kGroupLanes);
  }
  ReduceLanes(sums, [](GroupI& a, const GroupI& b) { a += b; });
  offset = -sums[0] * zero;
  for (int i = 0; i < num_quads; ++i) std::memcpy(quads + i * quad_stride, q + i * 4, 4);
}

// kRowsApart: row after row instead of quad after quad, as tile registers take them.
template <bool kRowsApart>
inline void QuantizeRows(const float* x, int64_t ldx, int num_rows, int count, int zero,
                         char* out) {
  float* scales = reinterpret_cast<float*>(out);
  int32_t* offsets = reinterpret_cast<int32_t*>(out) + num_rows;
  const int64_t row_bytes = kRowsApart ? PaddedGroup(count) : 4;
  for (int r = 0; r < num_rows; ++r) {
    QuantizeRow(x + r * ldx, count, zero, kRowsApart ? 4 : num_rows * 4, scales[r], offsets[r],
                out + 8 * num_rows + r * row_bytes);
  }
}

}  // namespace
}  // namespace lockstep::cpu
