// Attention of a tile of query rows over one split of one KV head, over a vector policy.
//
// Two small matrix products around a softmax. Keys are transposed, two vectors of positions at a
// time, so that a score is a plain chain over d and vectors run across positions; values are read
// where they lie, vectors across d. All rows (tokens x query heads of the group) share each key and
// value once it is in the first-level cache.
#pragma once

#include <cstdint>

#include "kernels/cpu/elementwise_kernels.h"
#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/partial_vector.h"
#include "kernels/cpu/vector_kernels.h"

namespace lockstep::cpu {
namespace {

template <class V, bool kBf16>
typename V::F LoadCached(const void* row, int64_t d, int n) {
  if constexpr (kBf16) {
    const uint16_t* p = static_cast<const uint16_t*>(row) + d;
    return n >= V::kWidth ? V::LoadBf16(p) : V::LoadFirstBf16(p, n);
  } else {
    const float* p = static_cast<const float*>(row) + d;
    return n >= V::kWidth ? V::Load(p) : V::LoadFirst(p, n);
  }
}

// Elements [0, returned) of kWidth rows of bf16, transposed two at a time: half the shuffles.
template <class V>
int TransposePairs(const void* const (&row)[V::kWidth], int head_dim, float* keys, int64_t ldk) {
  if (head_dim % 2 != 0) return 0;  // rows would not be aligned to pairs
  int d = 0;
  for (; d + 2 * V::kWidth <= head_dim; d += 2 * V::kWidth) {
    typename V::F square[V::kWidth];
#pragma GCC unroll 16
    for (int i = 0; i < V::kWidth; ++i) {
      square[i] = V::Lanes(V::LoadPairs(static_cast<const uint32_t*>(row[i]) + d / 2));
    }
    V::Transpose(square);
#pragma GCC unroll 16
    for (int i = 0; i < V::kWidth; ++i) {
      float* key = keys + (d + 2 * i) * ldk;
      V::Store(key, V::EvenOf(V::AsPairs(square[i])));
      V::Store(key + ldk, V::OddOf(V::AsPairs(square[i])));
    }
  }
  return d;
}

// keys[d][0, kWidth) = the elements d of kWidth rows; rows past the last repeat it, to be masked
// later.
template <class V, bool kBf16>
void TransposeKeys(const void* const* rows, int num_rows, int head_dim, float* keys, int64_t ldk) {
  const void* row[V::kWidth];
  for (int i = 0; i < V::kWidth; ++i) row[i] = rows[i < num_rows ? i : num_rows - 1];
  int first = 0;
  if constexpr (kBf16) first = TransposePairs<V>(row, head_dim, keys, ldk);
  for (int d = first; d < head_dim; d += V::kWidth) {
    const int n = head_dim - d < V::kWidth ? head_dim - d : V::kWidth;
    typename V::F square[V::kWidth];
#pragma GCC unroll 16
    for (int i = 0; i < V::kWidth; ++i) square[i] = LoadCached<V, kBf16>(row[i], d, n);
    V::Transpose(square);
    if (n == V::kWidth) {
#pragma GCC unroll 16
      for (int i = 0; i < V::kWidth; ++i) V::Store(keys + (d + i) * ldk, square[i]);
    } else {
      for (int i = 0; i < n; ++i) V::Store(keys + (d + i) * ldk, square[i]);
    }
  }
}

template <class V, int kRows = V::kTileRows>
void ScoreTile(int num_rows, const float* q, const float* keys, int head_dim, float* scores) {
  if (num_rows == kRows) {
    Sums sums;
    sums.out = scores;
    sums.out_stride = kSplitTokens;
    sums.out_columns = kPanelColumns<V>;
    TileF32<V, kRows, 1>(q, keys, 0, head_dim, sums, Fetch());
  } else if constexpr (kRows > 1) {
    ScoreTile<V, kRows - 1>(num_rows, q, keys, head_dim, scores);
  }
}

// Blocks of the cache lie anywhere, and few rows are soon done with a key: while one group of keys
// is at work, the next group is fetched, and the values that will be wanted when all scores are
// known (Zen 3, a decode's split of bf16 out of memory: 7.1 -> 5.1 us). Inlined by force: GCC 12
// drops calls of functions that do nothing but prefetch.
template <class V, bool kBf16>
[[gnu::always_inline]] inline void FetchRows(const void* const* rows, int num_rows, int head_dim,
                                             bool near) {
  const int bytes = head_dim * (kBf16 ? 2 : 4);
  for (int i = 0; i < num_rows; ++i) {
    for (int at = 0; at < bytes; at += 64) {
      const char* line = static_cast<const char*>(rows[i]) + at;
      near ? V::PrefetchNear(line) : V::PrefetchFar(line);
    }
  }
}

// weights[row][position] = score, for all positions (rounded up to two vectors).
template <class V, bool kBf16>
void Scores(const SplitAttention& args) {
  constexpr int kColumns = kPanelColumns<V>;
  for (int j = 0; j < args.num_positions; j += kColumns) {
    const int left = args.num_positions - j;
    if (left > kColumns) {
      const int next = left - kColumns < kColumns ? left - kColumns : kColumns;
      FetchRows<V, kBf16>(args.k_rows + j + kColumns, next, args.head_dim, true);
    }
    FetchRows<V, kBf16>(args.v_rows + j, left < kColumns ? left : kColumns, args.head_dim, false);
    TransposeKeys<V, kBf16>(args.k_rows + j, left, args.head_dim, args.keys, kColumns);
    const int second =
        left > V::kWidth ? V::kWidth : 0;  // any valid position will do when there is none
    TransposeKeys<V, kBf16>(args.k_rows + j + second, left - second, args.head_dim,
                            args.keys + V::kWidth, kColumns);
    const float* q = args.q;
    for (int row = 0; row < args.num_rows; row += V::kTileRows) {
      const int rows = args.num_rows - row < V::kTileRows ? args.num_rows - row : V::kTileRows;
      ScoreTile<V>(rows, q, args.keys, args.head_dim,
                   args.weights + int64_t{row} * kSplitTokens + j);
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
void ValueTile(const float* weights, const void* const* v_rows, int begin, int end, int d, int n,
               float* values, int64_t ldv, bool fresh) {
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
    typename V::F columns[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v)
      columns[v] = LoadCached<V, kBf16>(v_rows[j], d + v * V::kWidth, n);
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
void ValuePairsTile(const float* weights, const void* const* v_rows, int end, int d, float* values,
                    int64_t ldv) {
  using F = typename V::F;
  F sum[kRows][2 * kPairs];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < 2 * kPairs; ++v) sum[r][v] = V::Zero();
  }
  for (int j = 0; j < end; ++j) {
    const uint32_t* row = static_cast<const uint32_t*>(v_rows[j]) + d / 2;
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
int ValueWideTiles(const SplitAttention& args, const float* weights, int end, float* values) {
  constexpr bool kFew = kRows <= kFourVectorRows<V>;
  int d = 0;
  if constexpr (kBf16) {
    if (args.head_dim % 2 != 0) return 0;
    for (; kFew && d + 4 * V::kWidth <= args.head_dim; d += 4 * V::kWidth) {
      ValuePairsTile<V, kRows, kFew ? 2 : 1>(weights, args.v_rows, end, d, values, args.head_dim);
    }
    for (; d + 2 * V::kWidth <= args.head_dim; d += 2 * V::kWidth) {
      ValuePairsTile<V, kRows, 1>(weights, args.v_rows, end, d, values, args.head_dim);
    }
  } else {
    for (; kFew && d + 4 * V::kWidth <= args.head_dim; d += 4 * V::kWidth) {
      ValueTile<V, kBf16, kRows, kFew ? 4 : 1>(weights, args.v_rows, 0, end, d, V::kWidth, values,
                                               args.head_dim, true);
    }
  }
  return d;
}

template <class V, bool kBf16, int kRows>
void ValueRows(const SplitAttention& args, int row, int begin, int end, bool fresh) {
  const float* weights = args.weights + int64_t{row} * kSplitTokens;
  float* values = args.values + int64_t{row} * args.head_dim;
  int d = fresh ? ValueWideTiles<V, kBf16, kRows>(args, weights, end, values) : 0;
  for (; d + 2 * V::kWidth <= args.head_dim; d += 2 * V::kWidth) {
    ValueTile<V, kBf16, kRows, 2>(weights, args.v_rows, begin, end, d, V::kWidth, values,
                                  args.head_dim, fresh);
  }
  for (; d < args.head_dim; d += V::kWidth) {
    const int n = args.head_dim - d < V::kWidth ? args.head_dim - d : V::kWidth;
    ValueTile<V, kBf16, kRows, 1>(weights, args.v_rows, begin, end, d, n, values, args.head_dim,
                                  fresh);
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
  FetchRows<V, kBf16>(args.next_k_rows,
                      args.num_next < kPanelColumns<V> ? args.num_next : kPanelColumns<V>,
                      args.head_dim, true);
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
