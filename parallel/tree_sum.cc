#include "parallel/tree_sum.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace lockstep {
namespace {

// A GNU vector, not intrinsics: the layer is not tied to one processor family. `may_alias` and
// alignment 4 because it views arrays of float.
using Vector = float __attribute__((vector_size(16), aligned(4), may_alias));
constexpr int64_t kLanes = 4;

__attribute__((noinline)) void AddVectors(const Vector* low, const Vector* high, int64_t count,
                                          Vector* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = low[i] + high[i];
}

constexpr int64_t kStrip = 512;  // floats that TreeSum adds at once

// The sum of all parts at elements [at, at + count), count <= kStrip.
void SumStrip(std::span<float* const> parts, int64_t at, int64_t count, float* out) {
  if (parts.size() == 1) {
    std::memcpy(out, parts[0] + at, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  if (parts.size() == 2) return AddLowHigh(parts[0] + at, parts[1] + at, count, out);
  const size_t half = std::bit_ceil(parts.size()) / 2;
  float low[kStrip], high[kStrip];
  SumStrip(parts.first(half), at, count, low);
  SumStrip(parts.subspan(half), at, count, high);
  AddLowHigh(low, high, count, out);
}

}  // namespace

void TreeSum(std::span<float* const> parts, int64_t begin, int64_t end, float* out) {
  for (int64_t at = begin; at < end; at += kStrip) {
    SumStrip(parts, at, std::min(kStrip, end - at), out + (at - begin));
  }
}

void AddLowHigh(const float* low, const float* high, int64_t count, float* out) {
  const int64_t num_vectors = count / kLanes;
  AddVectors(reinterpret_cast<const Vector*>(low), reinterpret_cast<const Vector*>(high),
             num_vectors, reinterpret_cast<Vector*>(out));
  const int64_t done = num_vectors * kLanes;
  const int64_t rest = count - done;
  if (rest == 0) return;
  Vector tail[3] = {};  // low, high, sum: padded so that the same instruction adds them
  std::memcpy(&tail[0], low + done, static_cast<size_t>(rest) * sizeof(float));
  std::memcpy(&tail[1], high + done, static_cast<size_t>(rest) * sizeof(float));
  AddVectors(&tail[0], &tail[1], 1, &tail[2]);
  std::memcpy(out + done, &tail[2], static_cast<size_t>(rest) * sizeof(float));
}

void TreeSumInPlace(std::span<float* const> parts, int64_t begin, int64_t end) {
  constexpr int64_t kPiece = 4096;  // floats; a piece of every part stays in the first cache levels
  for (int64_t at = begin; at < end; at += kPiece) {
    const int64_t count = std::min(kPiece, end - at);
    for (size_t distance = 1; distance < parts.size(); distance *= 2) {
      for (size_t low = 0; low + distance < parts.size(); low += 2 * distance) {
        AddLowHigh(parts[low] + at, parts[low + distance] + at, count, parts[low] + at);
      }
    }
  }
}

}  // namespace lockstep
