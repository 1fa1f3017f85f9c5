// Attention of a tile of query rows over one split of one KV head, over a vector policy.
//
// Two small matrix products around a softmax. Keys lie transposed, so that a score is a plain chain
// over d and vectors run across positions; for values vectors run across d. All rows (tokens x
// query heads of the group) share each key and value once it is in the first-level cache.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention_scores.h"
#include "kernels/cpu/attention_values.h"
#include "kernels/cpu/elementwise_kernels.h"
#include "kernels/cpu/flush_denormals.h"
#include "kernels/cpu/partial_vector.h"
#include "kernels/cpu/split_lines.h"
#include "kernels/cpu/vector_kernels.h"

namespace lockstep::cpu {
namespace {

// Rounds the row up to 32 scores and gives their maximum.
template <class V>
float LargestScore(float* row, int count) {
  const int padded = (count + 31) / 32 * 32;
  for (int j = count; j < padded; ++j) row[j] = -__builtin_inff();
  typename V::F top = V::Load(row);
  for (int j = V::kWidth; j < padded; j += V::kWidth) top = V::Max(top, V::Load(row + j));
  return V::TreeMax(top);
}

// Turns the first `count` scores of a row, of which max is the largest, into weights, over bf16
// rounded (as pairs, in half the room, where those are multiplied at once); gives the sum of what
// they were before.
template <class V, bool kBf16>
float WeightsOfScores(float* row, int count, float max, LaterValues<V>& ahead) {
  using F = typename V::F;
  constexpr int kVecs = 16 / V::kWidth;
  constexpr bool kPairs = kBf16 && V::kNativePairs;
  static_assert(!kPairs || kVecs == 1);
  F lanes[kVecs];
  for (int v = 0; v < kVecs; ++v) lanes[v] = V::Zero();
  const auto weight_at = [&](int j, F& lane) [[gnu::always_inline]] {
    const F weight = VectorExp<V>(V::Sub(V::Load(row + j), V::Set(max)));
    lane = V::Add(lane, weight);
    return weight;
  };
  for (int j = 0; j < count; j += 32) {
    ahead.FetchStep();
    if constexpr (kPairs) {
      const F first = weight_at(j, lanes[0]);
      const F second = weight_at(j + 16, lanes[0]);
      V::Store(row + j / 2, V::AsLanes(V::RoundToPairs(first, second)));
    } else {
#pragma GCC unroll 8
      for (int v = 0; v < 2 * kVecs; ++v) {
        const F weight = weight_at(j + v * V::kWidth, lanes[v % kVecs]);
        V::Store(row + j + v * V::kWidth, kBf16 ? V::RoundToBf16(weight) : weight);
      }
    }
  }
  return SumOfLanes<V>(lanes);
}

// The maxima first: no row's exponentials wait for its own then.
template <class V, bool kBf16>
void Softmax(const SplitAttention& args) {
  const int64_t num_steps = int64_t{args.num_rows} * ((args.num_positions + 31) / 32);
  LaterValues<V> ahead(args, LinesPerGroup<kBf16>(args.head_dim), num_steps);
  const auto scores = [&](int row) { return args.weights + int64_t{row} * kSplitTokens; };
  for (int row = 0; row < args.num_rows; ++row) {
    if (args.row_lens[row] > 0)
      args.out.max[row] = LargestScore<V>(scores(row), args.row_lens[row]);
  }
  for (int row = 0; row < args.num_rows; ++row) {
    if (args.row_lens[row] == 0) continue;
    args.out.sum[row] =
        WeightsOfScores<V, kBf16>(scores(row), args.row_lens[row], args.out.max[row], ahead);
  }
}

// Runs products of bf16, flushing denormals as their instructions do.
template <class V, bool kBf16>
void FlushedIfPairs(const auto& products) {
  if constexpr (kBf16 && !V::kNativePairs) {
    const FlushDenormals flush;
    products();
  } else {
    products();
  }
}

template <class V, bool kBf16>
void AttendSplitOf(const SplitAttention& args) {
  FlushedIfPairs<V, kBf16>([&] { Scores<V, kBf16>(args); });
  Softmax<V, kBf16>(args);
  FlushedIfPairs<V, kBf16>([&] { Values<V, kBf16>(args); });
}

template <class V>
void AttendSplit(const SplitAttention& args) {
  args.bf16 ? AttendSplitOf<V, true>(args) : AttendSplitOf<V, false>(args);
}

// See VectorKernels; rows become columns by transposition.
template <class V, bool kBf16>
void PackQueries(const float* const* rows, int num_rows, int head_dim, float scale, float* out) {
  static_assert(V::kTileRows <= V::kWidth);
  for (int d = 0; d < head_dim; d += V::kWidth) {
    const int n = head_dim - d < V::kWidth ? head_dim - d : V::kWidth;
    typename V::F square[V::kWidth];
    for (int r = 0; r < V::kWidth; ++r) {
      square[r] = r < num_rows ? V::Mul(LoadUpTo<V>(rows[r] + d, n), V::Set(scale)) : V::Zero();
      if (kBf16) square[r] = V::RoundToBf16(square[r]);
    }
    V::Transpose(square);
    if constexpr (kBf16 && V::kNativePairs) {
      for (int i = 0; i < n; i += 2) {
        const typename V::Pairs pairs = V::PairUp(square[i], square[i + 1]);
        StoreUpTo<V>(out + (d + i) / 2 * num_rows, V::AsLanes(pairs), num_rows);
      }
    } else {
      for (int i = 0; i < n; ++i) StoreUpTo<V>(out + (d + i) * num_rows, square[i], num_rows);
    }
  }
}

// See VectorKernels; the exponentials of all rows first, side by side.
template <class V>
void MergeSoftmax(const SoftmaxRows& total, const SoftmaxRows& next, int num_rows, int head_dim) {
  using F = typename V::F;
  for (int first = 0; first < num_rows; first += V::kWidth) {
    const int rows = num_rows - first < V::kWidth ? num_rows - first : V::kWidth;
    const F max = LoadUpTo<V>(total.max + first, rows);
    const F next_max = LoadUpTo<V>(next.max + first, rows);
    const F largest = V::SelectLess(max, next_max, next_max, max);
    const F a = VectorExp<V>(V::Sub(max, largest));
    const F b = VectorExp<V>(V::Sub(next_max, largest));
    const F kept = V::Mul(LoadUpTo<V>(total.sum + first, rows), a);
    StoreUpTo<V>(total.max + first, largest, rows);
    StoreUpTo<V>(total.sum + first, V::Fma(LoadUpTo<V>(next.sum + first, rows), b, kept), rows);
    float factors[2][V::kWidth];
    V::Store(factors[0], a);
    V::Store(factors[1], b);
    for (int r = 0; r < rows; ++r) {
      float* const values = total.values + int64_t{first + r} * head_dim;
      const float* const added = next.values + int64_t{first + r} * head_dim;
      const F row_a = V::Set(factors[0][r]);
      const F row_b = V::Set(factors[1][r]);
      ForEachVector<V>(head_dim, [=](int64_t d, int n) {
        const F old = V::Mul(LoadUpTo<V>(values + d, n), row_a);
        StoreUpTo<V>(values + d, V::Fma(LoadUpTo<V>(added + d, n), row_b, old), n);
      });
    }
  }
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
