// Limits of what a config.json may say, for all who read one.
//
// Generous limits, so small that no product of sizes of a model (parameters x bytes) leaves int64:
// 2 * 2^24 * 2^20 + 2^12 * (4 * 2^24 * 2^20 + 3 * 2^20 * 2^22) < 2^59 parameters.
#pragma once

#include <cstdint>

namespace lockstep {

inline constexpr int64_t kMaxHiddenSize = int64_t{1} << 20;
inline constexpr int64_t kMaxIntermediateSize = int64_t{1} << 22;
inline constexpr int64_t kMaxLayers = int64_t{1} << 12;
inline constexpr int64_t kMaxHeads = int64_t{1} << 14;
inline constexpr int64_t kMaxHeadDim = int64_t{1} << 10;
inline constexpr int64_t kMaxVocabSize = int64_t{1} << 24;
inline constexpr int64_t kMaxPositions = int64_t{1} << 27;

}  // namespace lockstep
