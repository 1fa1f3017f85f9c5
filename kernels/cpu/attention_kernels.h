// Attention of a tile of query rows over one split of one KV head, over a vector policy.
//
// Two small matrix products around a softmax. Keys lie transposed, so that a score is a plain chain
// over d and vectors run across positions; for values vectors run across d. All rows (tokens x
// query heads of the group) share each key and value once it is in the first-level cache.
//
// Blocks of the cache lie anywhere, and a decode's few rows are soon done with a key: beside the
// products with the keys, line by line, the values of the same positions are fetched, and beside
// those with the values the keys of the next split, so that memory is busy throughout. (Zen 5, 8k
// tokens: 82 % of the read bandwidth on two cores that share it, 79 % when a whole split ahead.)
#pragma once

#include <cstdint>

#include "kernels/cpu/elementwise_kernels.h"
#include "kernels/cpu/gemm_kernels.h"
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

// Beside columns [d, d + n) of position j's values: as many bytes of the keys of the next split.
// Inlined by force: GCC 12 drops calls of functions that do nothing but prefetch.
template <class V, bool kBf16>
[[gnu::always_inline]] inline void FetchNextKeys(const SplitAttention& args, int j, int d, int n) {
  constexpr int64_t kElement = kBf16 ? 2 : 4;
  const int64_t row = int64_t{j % kGroupTokens} * args.head_dim;
  const char* const keys = args.next->k[j / kGroupTokens];
  for (int64_t line = (row + d) * kElement / 64; line * 64 < (row + d + n) * kElement; ++line) {
    V::PrefetchNear(keys + line * args.key_line_bytes);
  }
}

// Scores of kRows rows for the two vectors of positions from j on.
template <class V, bool kBf16, int kRows>
[[gnu::noinline]] void ScoreTile(const SplitAttention& args, int j, const float* q, float* scores,
                                 bool fetches) {
  Sums sums;
  sums.out = scores;
  sums.out_stride = kSplitTokens;
  sums.out_columns = kPanelColumns<V>;
  Accumulators<V, kRows, 1> acc;
  acc.Init(sums);
  const char* const first = KeysAt(*args.at, j);
  const char* const second = KeysAt(*args.at, j + V::kWidth);
  // As many lines as of keys.
  const char* const values = args.at->v[j / kGroupTokens];
  const char* const more_values = args.at->v[(j + V::kWidth) / kGroupTokens];
  const int64_t num_lines = kBf16 ? args.head_dim / 2 : args.head_dim;
  for (int64_t line = 0; line < num_lines; ++line) {
    const int64_t at = line * args.key_line_bytes;
    if (fetches) {
      V::PrefetchNear(values + line * 64);
      if constexpr (V::kWidth >= kGroupTokens) V::PrefetchNear(more_values + line * 64);
    }
    if constexpr (kBf16) {
      const typename V::Pairs a = V::LoadPairs(reinterpret_cast<const uint32_t*>(first + at));
      const typename V::Pairs b = V::LoadPairs(reinterpret_cast<const uint32_t*>(second + at));
      acc.AddProducts(q, {V::EvenOf(a), V::EvenOf(b)}, 0);
      acc.AddProducts(q + kRows, {V::OddOf(a), V::OddOf(b)}, 0);
      q += 2 * kRows;
    } else {
      acc.AddProducts(q,
                      {V::Load(reinterpret_cast<const float*>(first + at)),
                       V::Load(reinterpret_cast<const float*>(second + at))},
                      0);
      q += kRows;
    }
    acc.Pin();
  }
  acc.Finish(sums);
}

template <class V, bool kBf16, int kRows = V::kTileRows>
void ScoreTileOf(int num_rows, const SplitAttention& args, int j, const float* q, float* scores,
                 bool fetches) {
  if (num_rows == kRows) {
    ScoreTile<V, kBf16, kRows>(args, j, q, scores, fetches);
  } else if constexpr (kRows > 1) {
    ScoreTileOf<V, kBf16, kRows - 1>(num_rows, args, j, q, scores, fetches);
  }
}

// weights[row][position] = score, for all positions (rounded up to two vectors).
template <class V, bool kBf16>
void Scores(const SplitAttention& args) {
  for (int j = 0; j < args.num_positions; j += kPanelColumns<V>) {
    const float* q = args.q;
    for (int row = 0; row < args.num_rows; row += V::kTileRows) {
      const int rows = args.num_rows - row < V::kTileRows ? args.num_rows - row : V::kTileRows;
      ScoreTileOf<V, kBf16>(rows, args, j, q, args.weights + int64_t{row} * kSplitTokens + j,
                            row == 0);
      q += int64_t{V::kTileRows} * args.head_dim;
    }
  }
}

// Turns the first `count` scores of a row into weights; gives their maximum and sum.
template <class V>
void SoftmaxRow(float* row, int count, float* max, float* sum) {
  using F = typename V::F;
  constexpr int kVecs = 16 / V::kWidth;
  const int padded = (count + 15) / 16 * 16;
  for (int j = count; j < padded; ++j) row[j] = -__builtin_inff();
  F top = V::Load(row);
  for (int j = V::kWidth; j < padded; j += V::kWidth) top = V::Max(top, V::Load(row + j));
  alignas(64) float tops[V::kWidth];
  V::Store(tops, top);
  float m = tops[0];
  for (int i = 1; i < V::kWidth; ++i) m = tops[i] > m ? tops[i] : m;

  F lanes[kVecs];
  for (int v = 0; v < kVecs; ++v) lanes[v] = V::Zero();
  for (int j = 0; j < padded; j += 16) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      float* p = row + j + v * V::kWidth;
      const F weight = VectorExp<V>(V::Sub(V::Load(p), V::Set(m)));
      V::Store(p, weight);
      lanes[v] = V::Add(lanes[v], weight);
    }
  }
  *max = m;
  *sum = SumOfLanes<V>(lanes);
}

// values[kRows][ldv] (+)= weights[kRows][128] x v over positions [begin, end), for the `n` columns
// from d on.
template <class V, bool kBf16, int kRows, int kVecs>
void ValueTile(const SplitAttention& args, const float* weights, int begin, int end, int d, int n,
               float* values, bool fresh, bool fetches) {
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
  for (int j = begin; j < end; ++j) {
    const char* const row = ValueAt<kBf16>(*args.at, j, args.head_dim);
    if (fetches) FetchNextKeys<V, kBf16>(args, j, d, kVecs * V::kWidth);
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
                    bool fetches) {
  const int64_t ldv = args.head_dim;
  using F = typename V::F;
  F sum[kRows][2 * kPairs];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < 2 * kPairs; ++v) sum[r][v] = V::Zero();
  }
  for (int j = 0; j < end; ++j) {
    const int64_t at = 2 * d;
    const char* const from = ValueAt<true>(*args.at, j, args.head_dim) + at;
    const uint32_t* const row = reinterpret_cast<const uint32_t*>(from);
    if (fetches) FetchNextKeys<V, true>(args, j, d, 2 * kPairs * V::kWidth);
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

// With so few rows the registers hold four vectors of sums of each, beside the columns.
template <class V>
constexpr int kFourVectorRows = (2 * V::kTileRows + 1) / 5;

// Columns [d, returned) of the values, from zero.
template <class V, bool kBf16, int kRows>
int ValueWideTiles(const SplitAttention& args, const float* weights, int end, float* values,
                   bool fetches) {
  constexpr bool kFew = kRows <= kFourVectorRows<V>;
  int d = 0;
  if constexpr (kBf16) {
    for (; kFew && d + 4 * V::kWidth <= args.head_dim; d += 4 * V::kWidth) {
      ValuePairsTile<V, kRows, kFew ? 2 : 1>(args, weights, end, d, values, fetches);
    }
    for (; d + 2 * V::kWidth <= args.head_dim; d += 2 * V::kWidth) {
      ValuePairsTile<V, kRows, 1>(args, weights, end, d, values, fetches);
    }
  } else {
    for (; kFew && d + 4 * V::kWidth <= args.head_dim; d += 4 * V::kWidth) {
      ValueTile<V, kBf16, kRows, kFew ? 4 : 1>(args, weights, 0, end, d, V::kWidth, values, true,
                                               fetches);
    }
  }
  return d;
}

template <class V, bool kBf16, int kRows>
void ValueRows(const SplitAttention& args, int row, int begin, int end, bool fresh) {
  const float* weights = args.weights + int64_t{row} * kSplitTokens;
  float* values = args.values + int64_t{row} * args.head_dim;
  const bool fetches = row == 0 && fresh && args.next != nullptr;
  int d = fresh ? ValueWideTiles<V, kBf16, kRows>(args, weights, end, values, fetches) : 0;
  for (; d + 2 * V::kWidth <= args.head_dim; d += 2 * V::kWidth) {
    ValueTile<V, kBf16, kRows, 2>(args, weights, begin, end, d, V::kWidth, values, fresh, fetches);
  }
  for (; d < args.head_dim; d += V::kWidth) {
    const int n = args.head_dim - d < V::kWidth ? args.head_dim - d : V::kWidth;
    ValueTile<V, kBf16, kRows, 1>(args, weights, begin, end, d, n, values, fresh, fetches);
  }
}

template <class V, bool kBf16, int kRows = V::kTileRows>
void ValueRowsOf(int num_rows, const SplitAttention& args, int row, int end) {
  if (num_rows == kRows) {
    ValueRows<V, kBf16, kRows>(args, row, 0, end, true);
  } else if constexpr (kRows > 1) {
    ValueRowsOf<V, kBf16, kRows - 1>(num_rows, args, row, end);
  }
}

// The positions that all rows of a tile see are added together, the rest row by row: a weight of
// zero for a masked position would not do, since 0 * infinity and -0 + 0 leave traces.
template <class V, bool kBf16>
void Values(const SplitAttention& args) {
  for (int row = 0; row < args.num_rows; row += V::kTileRows) {
    const int rows = args.num_rows - row < V::kTileRows ? args.num_rows - row : V::kTileRows;
    int common = kSplitTokens;
    for (int r = row; r < row + rows; ++r)
      common = args.row_lens[r] < common ? args.row_lens[r] : common;
    ValueRowsOf<V, kBf16>(rows, args, row, common);
    for (int r = row; r < row + rows; ++r) {
      if (args.row_lens[r] > common)
        ValueRows<V, kBf16, 1>(args, r, common, args.row_lens[r], false);
    }
  }
}

template <class V, bool kBf16>
void AttendSplitOf(const SplitAttention& args) {
  Scores<V, kBf16>(args);
  for (int row = 0; row < args.num_rows; ++row) {
    if (args.row_lens[row] == 0) continue;
    SoftmaxRow<V>(args.weights + int64_t{row} * kSplitTokens, args.row_lens[row], args.max + row,
                  args.sum + row);
  }
  Values<V, kBf16>(args);
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
