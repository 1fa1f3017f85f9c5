// Attention of a tile of query rows over one split of one KV head, over a vector policy.
//
// Two small matrix products around a softmax. Keys lie transposed, so that a score is a plain chain
// over d and vectors run across positions; for values vectors run across d. All rows (tokens x
// query heads of the group) share each key and value once it is in the first-level cache.
//
// Blocks of the cache lie anywhere, and a decode's few rows are soon done with a key: beside the
// products with the keys and the softmax, line by line, the values of the same positions are
// fetched, and beside those with the values the keys of the next split, so that memory is busy
// throughout.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/elementwise_kernels.h"
#include "kernels/cpu/partial_vector.h"
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

// The first line of the keys from position j on, and the value of position j.
inline const char* KeysAt(const SplitGroups& groups, int j) {
  return groups.k[j / kGroupTokens] + j % kGroupTokens * 4;
}
template <bool kBf16>
const char* ValueAt(const SplitGroups& groups, int j, int head_dim) {
  const int64_t row_bytes = int64_t{head_dim} * (kBf16 ? 2 : 4);
  return groups.v[j / kGroupTokens] + j % kGroupTokens * row_bytes;
}

// Lines of memory, to be fetched a few at a time beside other work: of each of num_groups groups
// lines_per_group, stride bytes apart. By default none.
template <class V>
struct LinesAhead {
  const char* const* groups = nullptr;
  int64_t num_groups = 0;
  int64_t lines_per_group = 0;
  int64_t stride = 0;
  int64_t line = 0;  // of the first group, the next to be fetched

  int64_t left() const { return num_groups * lines_per_group - line; }
  // How many to take in each of so many steps, lest any be left.
  int64_t PerStep(int64_t num_steps) const { return (left() + num_steps - 1) / num_steps; }

  // Inlined by force: GCC 12 drops calls of functions that do nothing but prefetch.
  [[gnu::always_inline]] void Fetch(int64_t count) {
    for (; count > 0 && num_groups > 0; --count) {
      V::PrefetchNear(*groups + line * stride);
      if (++line < lines_per_group) continue;
      line = 0;
      ++groups;
      --num_groups;
    }
  }
};

// A line holds the positions of a group: as many bytes of each, and as many lines of its values.
template <bool kBf16>
int64_t LinesPerGroup(const SplitAttention& args) {
  return kBf16 ? args.head_dim / 2 : args.head_dim;
}
template <class V, bool kBf16>
LinesAhead<V> ValueLines(const SplitAttention& args) {
  return {args.at->v, (args.num_positions + kGroupTokens - 1) / kGroupTokens,
          LinesPerGroup<kBf16>(args), 64};
}
template <class V, bool kBf16>
LinesAhead<V> NextKeyLines(const SplitAttention& args) {
  if (args.next == nullptr) return {};
  return {args.next->k, kSplitGroups, LinesPerGroup<kBf16>(args), args.key_line_bytes};
}

// Few rows leave room for four vectors of sums of each, beside the columns: twice the independent
// chains of additions.
template <class V>
constexpr int kFourVectorRows = (2 * V::kTileRows + 1) / 5;
static_assert(kSplitTokens % 64 == 0);  // the positions of four vectors, at most

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
  const auto add_products = [&](const typename V::F(&columns)[kVecs]) [[gnu::always_inline]] {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename V::F query = V::Set(q[r]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) V::FmaInto(sum[r][v], query, columns[v]);
    }
    q += kRows;
  };
  LinesAhead<V> lines = ahead;
  const int64_t num_lines = LinesPerGroup<kBf16>(args);
  for (int64_t line = 0; line < num_lines; ++line) {
    const int64_t at = line * args.key_line_bytes;
    lines.Fetch(num_ahead);
    typename V::F columns[kVecs];
    if constexpr (kBf16) {
      typename V::Pairs pairs[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        pairs[v] = V::LoadPairs(reinterpret_cast<const uint32_t*>(keys[v] + at));
        columns[v] = V::EvenOf(pairs[v]);
      }
      add_products(columns);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) columns[v] = V::OddOf(pairs[v]);
    } else {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        columns[v] = V::Load(reinterpret_cast<const float*>(keys[v] + at));
      }
    }
    add_products(columns);
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

// Rounds the row up to 16 scores and gives their maximum.
template <class V>
float LargestScore(float* row, int count) {
  const int padded = (count + 15) / 16 * 16;
  for (int j = count; j < padded; ++j) row[j] = -__builtin_inff();
  typename V::F top = V::Load(row);
  for (int j = V::kWidth; j < padded; j += V::kWidth) top = V::Max(top, V::Load(row + j));
  return V::TreeMax(top);
}

// Turns the first `count` scores of a row, of which max is the largest, into weights; gives their
// sum.
template <class V>
float WeightsOfScores(float* row, int count, float max, LinesAhead<V>& ahead, int64_t num_ahead) {
  using F = typename V::F;
  constexpr int kVecs = 16 / V::kWidth;
  F lanes[kVecs];
  for (int v = 0; v < kVecs; ++v) lanes[v] = V::Zero();
  for (int j = 0; j < count; j += 16) {
    ahead.Fetch(num_ahead);
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      float* p = row + j + v * V::kWidth;
      const F weight = VectorExp<V>(V::Sub(V::Load(p), V::Set(max)));
      V::Store(p, weight);
      lanes[v] = V::Add(lanes[v], weight);
    }
  }
  return SumOfLanes<V>(lanes);
}

// The maxima first: no row's exponentials wait for its own then.
template <class V>
void Softmax(const SplitAttention& args, LinesAhead<V>& ahead) {
  const int64_t num_steps = int64_t{args.num_rows} * ((args.num_positions + 15) / 16);
  const int64_t num_ahead = ahead.PerStep(num_steps);
  const auto scores = [&](int row) { return args.weights + int64_t{row} * kSplitTokens; };
  for (int row = 0; row < args.num_rows; ++row) {
    if (args.row_lens[row] > 0) args.max[row] = LargestScore<V>(scores(row), args.row_lens[row]);
  }
  for (int row = 0; row < args.num_rows; ++row) {
    if (args.row_lens[row] == 0) continue;
    args.sum[row] =
        WeightsOfScores<V>(scores(row), args.row_lens[row], args.max[row], ahead, num_ahead);
  }
}

// values[kRows][ldv] (+)= weights[kRows][128] x v over positions [begin, end), for the `n` columns
// from d on.
template <class V, bool kBf16, int kRows, int kVecs>
void ValueTile(const SplitAttention& args, const float* weights, int begin, int end, int d, int n,
               float* values, bool fresh, LinesAhead<V>& ahead, int64_t num_ahead) {
  const int64_t ldv = args.head_dim;
  typename V::F sum[kRows][kVecs];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      float* p = values + r * ldv + d + v * V::kWidth;
      sum[r][v] = fresh ? V::Zero() : LoadUpTo<V>(p, n);
    }
  }
  LinesAhead<V> lines = ahead;
  for (int j = begin; j < end; ++j) {
    const char* const row = ValueAt<kBf16>(*args.at, j, args.head_dim);
    lines.Fetch(num_ahead);
    typename V::F columns[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) columns[v] = LoadCached<V, kBf16>(row, d + v * V::kWidth, n);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename V::F weight = V::Set(weights[r * kSplitTokens + j]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) V::FmaInto(sum[r][v], weight, columns[v]);
    }
  }
  ahead = lines;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v)
      StoreUpTo<V>(values + r * ldv + d + v * V::kWidth, sum[r][v], n);
  }
}

// The same from zero for 2 * kPairs vectors of columns of bf16, which are read as pairs: a load and
// two shifts for what takes two widening loads.
template <class V, int kRows, int kPairs>
void ValuePairsTile(const SplitAttention& args, const float* weights, int end, int d, float* values,
                    LinesAhead<V>& ahead, int64_t num_ahead) {
  const int64_t ldv = args.head_dim;
  using F = typename V::F;
  F sum[kRows][2 * kPairs];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < 2 * kPairs; ++v) sum[r][v] = V::Zero();
  }
  LinesAhead<V> lines = ahead;
  for (int j = 0; j < end; ++j) {
    const int64_t at = 2 * d;
    const char* const from = ValueAt<true>(*args.at, j, args.head_dim) + at;
    const uint32_t* const row = reinterpret_cast<const uint32_t*>(from);
    lines.Fetch(num_ahead);
    F columns[2 * kPairs];
#pragma GCC unroll 2
    for (int p = 0; p < kPairs; ++p) {
      const typename V::Pairs pairs = V::LoadPairs(row + p * V::kWidth);
      columns[2 * p] = V::EvenOf(pairs);
      columns[2 * p + 1] = V::OddOf(pairs);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const F weight = V::Set(weights[r * kSplitTokens + j]);
#pragma GCC unroll 4
      for (int v = 0; v < 2 * kPairs; ++v) V::FmaInto(sum[r][v], weight, columns[v]);
    }
  }
  ahead = lines;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < kPairs; ++p) {
      V::Interleave(sum[r][2 * p], sum[r][2 * p + 1]);
      float* out = values + r * ldv + d + 2 * p * V::kWidth;
      V::Store(out, sum[r][2 * p]);
      V::Store(out + V::kWidth, sum[r][2 * p + 1]);
    }
  }
}

// Columns [d, returned) of the values, from zero.
template <class V, bool kBf16, int kRows>
int ValueWideTiles(const SplitAttention& args, const float* weights, int end, float* values,
                   LinesAhead<V>& ahead, int64_t num_ahead) {
  constexpr bool kFew = kRows <= kFourVectorRows<V>;
  int d = 0;
  if constexpr (kBf16) {
    for (; kFew && d + 4 * V::kWidth <= args.head_dim; d += 4 * V::kWidth) {
      ValuePairsTile<V, kRows, kFew ? 2 : 1>(args, weights, end, d, values, ahead, num_ahead);
    }
    for (; d + 2 * V::kWidth <= args.head_dim; d += 2 * V::kWidth) {
      ValuePairsTile<V, kRows, 1>(args, weights, end, d, values, ahead, num_ahead);
    }
  } else {
    for (; kFew && d + 4 * V::kWidth <= args.head_dim; d += 4 * V::kWidth) {
      ValueTile<V, kBf16, kRows, kFew ? 4 : 1>(args, weights, 0, end, d, V::kWidth, values, true,
                                               ahead, num_ahead);
    }
  }
  return d;
}

template <class V, bool kBf16, int kRows>
void ValueRows(const SplitAttention& args, int row, int begin, int end, bool fresh,
               LinesAhead<V>& ahead) {
  const float* weights = args.weights + int64_t{row} * kSplitTokens;
  float* values = args.values + int64_t{row} * args.head_dim;
  // Tiles of fewer columns take them sooner.
  const int64_t num_wide = std::max<int64_t>(1, args.head_dim / (4 * V::kWidth));
  const int64_t num_ahead = ahead.PerStep(num_wide * std::max(1, end - begin));
  int d = fresh ? ValueWideTiles<V, kBf16, kRows>(args, weights, end, values, ahead, num_ahead) : 0;
  for (; d + 2 * V::kWidth <= args.head_dim; d += 2 * V::kWidth) {
    ValueTile<V, kBf16, kRows, 2>(args, weights, begin, end, d, V::kWidth, values, fresh, ahead,
                                  num_ahead);
  }
  for (; d < args.head_dim; d += V::kWidth) {
    const int n = args.head_dim - d < V::kWidth ? args.head_dim - d : V::kWidth;
    ValueTile<V, kBf16, kRows, 1>(args, weights, begin, end, d, n, values, fresh, ahead, num_ahead);
  }
}

template <class V, bool kBf16, int kRows = V::kTileRows>
void ValueRowsOf(int num_rows, const SplitAttention& args, int row, int end, LinesAhead<V>& ahead) {
  if (num_rows == kRows) {
    ValueRows<V, kBf16, kRows>(args, row, 0, end, true, ahead);
  } else if constexpr (kRows > 1) {
    ValueRowsOf<V, kBf16, kRows - 1>(num_rows, args, row, end, ahead);
  }
}

// The positions that all rows of a tile see are added together, the rest row by row: a weight of
// zero for a masked position would not do, since 0 * infinity and -0 + 0 leave traces.
template <class V, bool kBf16>
void Values(const SplitAttention& args, LinesAhead<V>& ahead) {
  for (int row = 0; row < args.num_rows; row += V::kTileRows) {
    const int rows = args.num_rows - row < V::kTileRows ? args.num_rows - row : V::kTileRows;
    int common = kSplitTokens;
    for (int r = row; r < row + rows; ++r)
      common = args.row_lens[r] < common ? args.row_lens[r] : common;
    ValueRowsOf<V, kBf16>(rows, args, row, common, ahead);
    for (int r = row; r < row + rows; ++r) {
      if (args.row_lens[r] > common)
        ValueRows<V, kBf16, 1>(args, r, common, args.row_lens[r], false, ahead);
    }
  }
}

template <class V, bool kBf16>
void AttendSplitOf(const SplitAttention& args) {
  LinesAhead<V> ahead = ValueLines<V, kBf16>(args);
  Scores<V, kBf16>(args, ahead);
  Softmax<V>(args, ahead);
  ahead = NextKeyLines<V, kBf16>(args);
  Values<V, kBf16>(args, ahead);
}

template <class V>
void AttendSplit(const SplitAttention& args) {
  args.bf16 ? AttendSplitOf<V, true>(args) : AttendSplitOf<V, false>(args);
}

// out[d][row] = rows[row][d] * scale, for d in [0, head_dim).
template <class V>
void PackQueries(const float* const* rows, int num_rows, int head_dim, float scale, float* out) {
  static_assert(V::kTileRows <= V::kWidth || V::kWidth < 8);
  if constexpr (V::kTileRows > V::kWidth) {
    for (int r = 0; r < num_rows; ++r) {
      for (int d = 0; d < head_dim; ++d) out[d * num_rows + r] = rows[r][d] * scale;
    }
  } else {
    for (int d = 0; d < head_dim; d += V::kWidth) {
      const int n = head_dim - d < V::kWidth ? head_dim - d : V::kWidth;
      typename V::F square[V::kWidth];
      for (int r = 0; r < V::kWidth; ++r) {
        square[r] = r < num_rows ? V::Mul(LoadUpTo<V>(rows[r] + d, n), V::Set(scale)) : V::Zero();
      }
      V::Transpose(square);
      for (int i = 0; i < n; ++i) StoreUpTo<V>(out + (d + i) * num_rows, square[i], num_rows);
    }
  }
}

template <class V>
void MergeSoftmax(float* max, float* sum, float* values, float next_max, float next_sum,
                  const float* next_values, int head_dim) {
  using F = typename V::F;
  const float m = *max < next_max ? next_max : *max;
  const F a = VectorExp<V>(V::Set(*max - m));
  const F b = VectorExp<V>(V::Set(next_max - m));
  *max = m;
  *sum = FirstLane<V>(V::Fma(V::Set(next_sum), b, V::Mul(V::Set(*sum), a)));
  ForEachVector<V>(head_dim, [=](int64_t d, int n) {
    const F kept = V::Mul(LoadUpTo<V>(values + d, n), a);
    StoreUpTo<V>(values + d, V::Fma(LoadUpTo<V>(next_values + d, n), b, kept), n);
  });
}

template <class V>
void Normalise(const float* values, float sum, int head_dim, float* out) {
  const float inverse = 1.0f / sum;
  ForEachVector<V>(head_dim, [=](int64_t d, int n) {
    StoreUpTo<V>(out + d, V::Mul(LoadUpTo<V>(values + d, n), V::Set(inverse)), n);
  });
}

}  // namespace
}  // namespace lockstep::cpu
