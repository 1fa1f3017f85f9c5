// Products of query rows with the keys of a split. Keys lie transposed, so that a score is a plain
// chain over d and vectors run across positions.
#pragma once

#include <cstdint>

#include "kernels/cpu/split_lines.h"
#include "kernels/cpu/vector_kernels.h"

namespace lockstep::cpu {
namespace {

// The first line of the keys from position j on.
inline const char* KeysAt(const SplitGroups& groups, int j) {
  return groups.k[j / kGroupTokens] + j % kGroupTokens * 4;
}

template <class V, int kRows, int kVecs>
[[gnu::always_inline]] inline void AddScores(typename V::F (&sums)[kRows][kVecs], const float* q,
                                             const typename V::F (&columns)[kVecs]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const typename V::F query = V::Set(q[r]);
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) V::FmaInto(sums[r][v], query, columns[v]);
  }
}

// The odd elements' products, then the even ones'.
template <class V, int kRows, int kVecs>
[[gnu::always_inline]] inline void AddPairScores(typename V::F (&sums)[kRows][kVecs],
                                                 const float* q,
                                                 const typename V::Pairs (&pairs)[kVecs]) {
  if constexpr (V::kNativePairs) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename V::Pairs query = V::SetPair(__builtin_bit_cast(uint32_t, q[r]));
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) sums[r][v] = V::DotPairs(sums[r][v], query, pairs[v]);
    }
  } else {
    typename V::F columns[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) columns[v] = V::OddOf(pairs[v]);
    AddScores<V, kRows, kVecs>(sums, q + kRows, columns);
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) columns[v] = V::EvenOf(pairs[v]);
    AddScores<V, kRows, kVecs>(sums, q, columns);
  }
}

// Scores of kRows rows for the kVecs vectors of positions from j on, and num_ahead lines fetched
// for each of the keys.
template <class V, bool kBf16, int kRows, int kVecs>
[[gnu::noinline]] void ScoreTile(const SplitAttention& args, int j, const float* q, float* scores,
                                 LinesAhead<V>& ahead, int64_t num_ahead) {
  typename V::F sum[kRows][kVecs];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) sum[r][v] = V::Zero();
  }
  const char* keys[kVecs];
  for (int v = 0; v < kVecs; ++v) keys[v] = KeysAt(*args.at, j + v * V::kWidth);
  LinesAhead<V> lines = ahead;
  const int64_t num_lines = LinesPerGroup<kBf16>(args);
  for (int64_t line = 0; line < num_lines; ++line) {
    const int64_t at = line * args.key_line_bytes;
    lines.Fetch(num_ahead);
    if constexpr (!kBf16) {
      typename V::F columns[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v)
        columns[v] = V::Load(reinterpret_cast<const float*>(keys[v] + at));
      AddScores<V, kRows, kVecs>(sum, q, columns);
      q += kRows;
      continue;
    }
    typename V::Pairs pairs[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v)
      pairs[v] = V::LoadPairs(reinterpret_cast<const uint32_t*>(keys[v] + at));
    AddPairScores<V, kRows, kVecs>(sum, q, pairs);
    q += V::kNativePairs ? kRows : 2 * kRows;
  }
  ahead = lines;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      V::Store(scores + int64_t{r} * kSplitTokens + v * V::kWidth, sum[r][v]);
    }
  }
}

// Of kRows rows for all positions, rounded up to whole tiles.
template <class V, bool kBf16, int kRows>
void ScoreRows(const SplitAttention& args, const float* q, float* scores, LinesAhead<V>& ahead) {
  constexpr int kVecs = kRows <= kFourVectorRows<V> ? 4 : 2;
  constexpr int kColumns = kVecs * V::kWidth;
  const int num_tiles = (args.num_positions + kColumns - 1) / kColumns;
  // The softmax fetches the rest.
  const int64_t num_ahead = ahead.PerStep(num_tiles * LinesPerGroup<kBf16>(args)) * 3 / 4;
  for (int j = 0; j < args.num_positions; j += kColumns) {
    ScoreTile<V, kBf16, kRows, kVecs>(args, j, q, scores + j, ahead, num_ahead);
  }
}

template <class V, bool kBf16, int kRows = V::kTileRows>
void ScoreRowsOf(int num_rows, const SplitAttention& args, const float* q, float* scores,
                 LinesAhead<V>& ahead) {
  if (num_rows == kRows) {
    ScoreRows<V, kBf16, kRows>(args, q, scores, ahead);
  } else if constexpr (kRows > 1) {
    ScoreRowsOf<V, kBf16, kRows - 1>(num_rows, args, q, scores, ahead);
  }
}

// weights[row][position] = score.
template <class V, bool kBf16>
void Scores(const SplitAttention& args, LinesAhead<V>& ahead) {
  const float* q = args.q;
  for (int row = 0; row < args.num_rows; row += V::kTileRows) {
    const int rows = args.num_rows - row < V::kTileRows ? args.num_rows - row : V::kTileRows;
    ScoreRowsOf<V, kBf16>(rows, args, q, args.weights + int64_t{row} * kSplitTokens, ahead);
    q += int64_t{V::kTileRows} * args.head_dim;
  }
}

}  // namespace
}  // namespace lockstep::cpu
