// Products of the weights of a split with its values. Vectors run across d.
#pragma once

#include <cstdint>

#include "kernels/cpu/partial_vector.h"
#include "kernels/cpu/split_lines.h"
#include "kernels/cpu/vector_kernels.h"

namespace lockstep::cpu {
namespace {

template <class V, bool kBf16>
typename V::F LoadCached(const char* row, int64_t d, int n) {
  if constexpr (kBf16) {
    const uint16_t* p = reinterpret_cast<const uint16_t*>(row) + d;
    return n >= V::kWidth ? V::LoadBf16(p) : V::LoadFirstBf16(p, n);
  } else {
    const float* p = reinterpret_cast<const float*>(row) + d;
    return n >= V::kWidth ? V::Load(p) : V::LoadFirst(p, n);
  }
}

// What tiles of rows from `row` on are to add: positions [begin, end), begin even; from zero if
// fresh. Of pairs, the weights have zero beside a last one that is alone.
struct ValueRun {
  const SplitAttention& args;
  int row;
  int begin;
  int end;
  bool fresh;

  // Of the tile's first row: of position j, or of the pair that begins there.
  template <bool kPairs>
  const float* WeightAt(int j) const {
    return args.weights + int64_t{row} * kSplitTokens + (kPairs ? j / 2 : j);
  }
  float* values() const { return args.out.values + int64_t{row} * args.head_dim; }
};

// Calls step(j, value) for the run's positions j, kStep at a time, value being columns from d on of
// the first one's row; last(j, value) for the rest, less than a step. Meanwhile the keys that
// follow are fetched, kLines lines a step: all tiles together take them all, one after the other.
template <class V, bool kBf16, int kStep, int kLines>
[[gnu::always_inline]] inline void WalkValues(const ValueRun& run, int d, const auto& step,
                                              const auto& last) {
  constexpr int kElementBytes = kBf16 ? 2 : 4;
  constexpr int kRunLines = kGroupTokens / kStep * kLines;  // fetched beside a group of positions
  const SplitAttention& args = run.args;
  const int64_t row_bytes = int64_t{args.head_dim} * kElementBytes;
  const int64_t stride = args.key_line_bytes;
  const auto lines_per_group = static_cast<unsigned>(LinesPerGroup<kBf16>(args.head_dim));
  const unsigned lines_of_tiles = kSplitGroups * LinesPerGroup<kBf16>(d);
  for (int j = run.begin; j < run.end;) {
    const int g = j / kGroupTokens;
    const int end = run.end < (g + 1) * kGroupTokens ? run.end : (g + 1) * kGroupTokens;
    const char* value = args.at->v[g] + j % kGroupTokens * row_bytes + d * kElementBytes;
    const unsigned line = lines_of_tiles + g * kRunLines;
    const char* ahead =
        args.next->k[line / lines_per_group % kSplitGroups] + line % lines_per_group * stride;
    for (; j + kStep <= end; j += kStep) {
#pragma GCC unroll 4
      for (int i = 0; i < kLines; ++i) V::PrefetchNear(ahead + i * stride);
      ahead += kLines * stride;
      step(j, value);
      value += kStep * row_bytes;
    }
    if (j < end) last(j++, value);
  }
}

template <class V, int kRows, int kVecs>
using ValueSums = typename V::F[kRows][kVecs];

template <class V, int kRows, int kVecs>
[[gnu::always_inline]] inline void AddProducts(ValueSums<V, kRows, kVecs>& sums,
                                               const float* weights,
                                               const typename V::F (&columns)[kVecs]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const typename V::F weight = V::Set(weights[r * kSplitTokens]);
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) V::FmaInto(sums[r][v], weight, columns[v]);
  }
}

template <class V, int kRows, int kVecs>
[[gnu::always_inline]] inline void AddPairs(ValueSums<V, kRows, kVecs>& sums, const float* weights,
                                            const typename V::Pairs (&columns)[kVecs]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const typename V::Pairs weight =
        V::SetPair(__builtin_bit_cast(uint32_t, weights[r * kSplitTokens]));
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) sums[r][v] = V::DotPairs(sums[r][v], weight, columns[v]);
  }
}

// values[kRows][head_dim] (+)= weights[kRows][128] x v, kVecs vectors of columns from d on; with
// one vector the first n of it.
template <class V, bool kBf16, int kRows, int kVecs>
[[gnu::noinline]] void ValueTile(const ValueRun& run, int d, int n) {
  using F = typename V::F;
  constexpr bool kPairs = kBf16 && V::kNativePairs;
  const int64_t ldv = run.args.head_dim;
  float* const values = run.values() + d;
  ValueSums<V, kRows, kVecs> sums;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v)
      sums[r][v] = run.fresh ? V::Zero() : LoadUpTo<V>(values + r * ldv + v * V::kWidth, n);
  }
  const auto load = [&](const char* value, F(&columns)[kVecs]) [[gnu::always_inline]] {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) columns[v] = LoadCached<V, kBf16>(value, v * V::kWidth, n);
  };
  const auto add_pair = [&](int j, const char* value, bool has_odd) [[gnu::always_inline]] {
    F even[kVecs], odd[kVecs];
    load(value, even);
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) odd[v] = V::Zero();
    if (has_odd) load(value + ldv * 2, odd);
    const float* const weights = run.WeightAt<kPairs>(j);
    if constexpr (kPairs) {
      typename V::Pairs pairs[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) pairs[v] = V::PairUp(even[v], odd[v]);
      AddPairs<V, kRows, kVecs>(sums, weights, pairs);
    } else {
      AddProducts<V, kRows, kVecs>(sums, weights + 1, odd);
      AddProducts<V, kRows, kVecs>(sums, weights, even);
    }
  };
  const auto add_one = [&](int j, const char* value) [[gnu::always_inline]] {
    F columns[kVecs];
    load(value, columns);
    AddProducts<V, kRows, kVecs>(sums, run.WeightAt<false>(j), columns);
  };
  constexpr int kLines = kVecs * V::kWidth < 16 ? 1 : kVecs * V::kWidth / 16;
  if constexpr (kBf16) {
    WalkValues<V, true, 2, kLines>(
        run, d, [&](int j, const char* value) [[gnu::always_inline]] { add_pair(j, value, true); },
        [&](int j, const char* value) [[gnu::always_inline]] { add_pair(j, value, false); });
  } else {
    WalkValues<V, false, 1, kLines>(run, d, add_one, add_one);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) StoreUpTo<V>(values + r * ldv + v * V::kWidth, sums[r][v], n);
  }
}

// The same of bf16, from zero, for 2 * kUnits whole vectors of columns, read as they lie: as pairs
// of columns, whose halves are wide with one operation, or, where pairs of positions are multiplied
// at once, zipped with the next position's. The sums are put in order at the end.
template <class V, int kRows, int kUnits>
[[gnu::noinline]] void ValueUnitsTile(const ValueRun& run, int d) {
  using F = typename V::F;
  constexpr int kVecs = 2 * kUnits;
  const int64_t ldv = run.args.head_dim;
  ValueSums<V, kRows, kVecs> sums;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) sums[r][v] = V::Zero();
  }
  // Of the even position and, if there is one, of the odd: known when compiled, unlike a null.
  const auto add_pair = [&](int j, const uint32_t* even, bool has_odd) [[gnu::always_inline]] {
    const uint32_t* const odd = even + ldv / 2;
    const float* const weights = run.WeightAt<V::kNativePairs>(j);
    if constexpr (V::kNativePairs) {
      typename V::Pairs pairs[kVecs];
#pragma GCC unroll 2
      for (int u = 0; u < kUnits; ++u) {
        pairs[2 * u] = V::LoadPairs(even + u * V::kWidth);
        pairs[2 * u + 1] = has_odd ? V::LoadPairs(odd + u * V::kWidth) : V::SetPair(0);
        V::ZipRows(pairs[2 * u], pairs[2 * u + 1]);
      }
      AddPairs<V, kRows, kVecs>(sums, weights, pairs);
    } else {
      const auto widen = [](const uint32_t* from, F(&columns)[kVecs]) [[gnu::always_inline]] {
#pragma GCC unroll 2
        for (int u = 0; u < kUnits; ++u) {
          const typename V::Pairs pairs = V::LoadPairs(from + u * V::kWidth);
          columns[2 * u] = V::EvenOf(pairs);
          columns[2 * u + 1] = V::OddOf(pairs);
        }
      };
      F columns[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) columns[v] = V::Zero();
      if (has_odd) widen(odd, columns);
      AddProducts<V, kRows, kVecs>(sums, weights + 1, columns);
      widen(even, columns);
      AddProducts<V, kRows, kVecs>(sums, weights, columns);
    }
  };
  const auto pairs_at = [](const char* value) { return reinterpret_cast<const uint32_t*>(value); };
  WalkValues<V, true, 2, kVecs * V::kWidth / 16>(
      run, d,
      [&](int j, const char* value) [[gnu::always_inline]] { add_pair(j, pairs_at(value), true); },
      [&](int j, const char* value)
          [[gnu::always_inline]] { add_pair(j, pairs_at(value), false); });
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int u = 0; u < kUnits; ++u) {
      F& first = sums[r][2 * u];
      F& second = sums[r][2 * u + 1];
      if constexpr (V::kNativePairs) {
        V::UnzipSums(first, second);
      } else {
        V::Interleave(first, second);
      }
      float* const out = run.values() + r * ldv + d + 2 * u * V::kWidth;
      V::Store(out, first);
      V::Store(out + V::kWidth, second);
    }
  }
}

// Columns [0, returned) of the values, from zero.
template <class V, bool kBf16, int kRows>
int ValueWideTiles(const ValueRun& run) {
  constexpr bool kFew = kRows <= kFourVectorRows<V>;
  const int head_dim = run.args.head_dim;
  int d = 0;
  for (; kFew && d + 4 * V::kWidth <= head_dim; d += 4 * V::kWidth) {
    if constexpr (kBf16) {
      ValueUnitsTile<V, kRows, kFew ? 2 : 1>(run, d);
    } else {
      ValueTile<V, kBf16, kRows, kFew ? 4 : 1>(run, d, V::kWidth);
    }
  }
  if constexpr (kBf16) {
    for (; d + 2 * V::kWidth <= head_dim; d += 2 * V::kWidth) ValueUnitsTile<V, kRows, 1>(run, d);
  }
  return d;
}

template <class V, bool kBf16, int kRows>
void ValueRows(const ValueRun& run) {
  const int head_dim = run.args.head_dim;
  int d = run.fresh ? ValueWideTiles<V, kBf16, kRows>(run) : 0;
  for (; d + 2 * V::kWidth <= head_dim; d += 2 * V::kWidth)
    ValueTile<V, kBf16, kRows, 2>(run, d, V::kWidth);
  for (; d < head_dim; d += V::kWidth)
    ValueTile<V, kBf16, kRows, 1>(run, d, head_dim - d < V::kWidth ? head_dim - d : V::kWidth);
}

template <class V, bool kBf16, int kRows = V::kTileRows>
void ValueRowsOf(int num_rows, const ValueRun& run) {
  if (num_rows == kRows) {
    ValueRows<V, kBf16, kRows>(run);
  } else if constexpr (kRows > 1) {
    ValueRowsOf<V, kBf16, kRows - 1>(num_rows, run);
  }
}

// The positions that all rows of a tile see are added together, the rest row by row: a weight of
// zero for a masked position would not do, since 0 * infinity and -0 + 0 leave traces.
template <class V, bool kBf16>
void Values(const SplitAttention& args) {
  for (int row = 0; row < args.num_rows; row += V::kTileRows) {
    const int rows = args.num_rows - row < V::kTileRows ? args.num_rows - row : V::kTileRows;
    const int32_t* const lens = args.row_lens + row;
    int common = lens[0];
    bool all = true;
    for (int r = 1; r < rows; ++r) {
      all = all && lens[r] == lens[0];
      common = lens[r] < common ? lens[r] : common;
    }
    if (kBf16 && !all) common -= common % 2;  // no pair is divided
    ValueRowsOf<V, kBf16>(rows, ValueRun{args, row, 0, common, true});
    for (int r = 0; r < rows; ++r) {
      if (lens[r] > common) ValueRows<V, kBf16, 1>(ValueRun{args, row + r, common, lens[r], false});
    }
  }
}

}  // namespace
}  // namespace lockstep::cpu
