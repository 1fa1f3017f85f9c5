// Products of query rows with the keys of a split. Keys lie transposed, so that a score is a plain
// chain over d and vectors run across positions.
#pragma once

#include <cstdint>

#include "kernels/cpu/split_lines.h"
#include "kernels/cpu/vector_kernels.h"

namespace lockstep::cpu {
namespace {

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

// Scores of kRows rows for the kVecs vectors of positions from j on; if so asked, values are
// fetched meanwhile: by all tiles together those of the first half of the positions.
template <class V, bool kBf16, int kRows, int kVecs>
[[gnu::noinline]] void ScoreTile(const SplitAttention& args, int j, const float* q, bool fetch) {
  constexpr int kGroups = kVecs * V::kWidth / kGroupTokens;
  constexpr int kAhead = (kGroups + 1) / 2;  // groups, so many lines to one of the keys
  typename V::F sums[kRows][kVecs];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) sums[r][v] = V::Zero();
  }
  const char* keys[kVecs];
#pragma GCC unroll 4
  for (int v = 0; v < kVecs; ++v) {
    const int at = j + v * V::kWidth;
    keys[v] = args.at->k[at / kGroupTokens] + at % kGroupTokens * 4;
  }
  const auto add_line = [&](int64_t at) [[gnu::always_inline]] {
    if constexpr (kBf16) {
      typename V::Pairs pairs[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v)
        pairs[v] = V::LoadPairs(reinterpret_cast<const uint32_t*>(keys[v] + at));
      AddPairScores<V, kRows, kVecs>(sums, q, pairs);
    } else {
      typename V::F columns[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v)
        columns[v] = V::Load(reinterpret_cast<const float*>(keys[v] + at));
      AddScores<V, kRows, kVecs>(sums, q, columns);
    }
    q += kBf16 && !V::kNativePairs ? 2 * kRows : kRows;
  };
  const int64_t num_lines = LinesPerGroup<kBf16>(args.head_dim);
  int64_t line = 0, at = 0;
  if (fetch) {
#pragma GCC unroll 1
    for (int g = 0; g < kAhead; ++g) {
      const char* ahead = args.at->v[j / (kVecs * V::kWidth) * kAhead + g];
      const int64_t end = num_lines * (g + 1) / kAhead;
      for (; line < end; ++line) {
#pragma GCC unroll 4
        for (int i = 0; i < kAhead; ++i) V::PrefetchNear(ahead + i * kLineBytes);
        ahead += kAhead * kLineBytes;
        add_line(at);
        at += args.key_line_bytes;
      }
    }
  }
  for (; line < num_lines; ++line) {
    add_line(at);
    at += args.key_line_bytes;
  }
  float* const scores = args.weights + j;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      V::Store(scores + int64_t{r} * kSplitTokens + v * V::kWidth, sums[r][v]);
    }
  }
}

// Of kRows rows for all positions, rounded up to whole tiles.
template <class V, bool kBf16, int kRows>
void ScoreRows(const SplitAttention& args, const float* q, bool fetch) {
  constexpr int kVecs = kRows <= kFourVectorRows<V> ? 4 : 2;
  for (int j = 0; j < args.num_positions; j += kVecs * V::kWidth)
    ScoreTile<V, kBf16, kRows, kVecs>(args, j, q, fetch);
}

template <class V, bool kBf16, int kRows = V::kTileRows>
void ScoreRowsOf(int num_rows, const SplitAttention& args, const float* q, bool fetch) {
  if (num_rows == kRows) {
    ScoreRows<V, kBf16, kRows>(args, q, fetch);
  } else if constexpr (kRows > 1) {
    ScoreRowsOf<V, kBf16, kRows - 1>(num_rows, args, q, fetch);
  }
}

// weights[row][position] = score; the values are fetched beside the first rows.
template <class V, bool kBf16>
void Scores(SplitAttention args) {
  bool fetch = true;
  for (int rows_left = args.num_rows; rows_left > 0; rows_left -= V::kTileRows) {
    const int rows = rows_left < V::kTileRows ? rows_left : V::kTileRows;
    ScoreRowsOf<V, kBf16>(rows, args, args.q, fetch);
    args.q += int64_t{V::kTileRows} * args.head_dim;
    args.weights += int64_t{V::kTileRows} * kSplitTokens;
    fetch = false;
  }
}

}  // namespace
}  // namespace lockstep::cpu
