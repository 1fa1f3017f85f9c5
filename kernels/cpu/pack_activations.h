// Rows of activations turned into the row tiles that gemm_kernels.h multiplies: all rows of a tile
// side by side for each k, so that a tile is read in address order.
#pragma once

#include <cstdint>

#include "kernels/cpu/partial_vector.h"

namespace lockstep::cpu {
namespace {

// out: [count][num_rows], of the vectors that load(row, first) gives.
template <class V, class Load>
void PackTransposed(int num_rows, int64_t count, float* out, Load load) {
  static_assert(V::kTileRows <= V::kWidth);
  for (int64_t i = 0; i < count; i += V::kWidth) {
    const int n = count - i < V::kWidth ? static_cast<int>(count - i) : V::kWidth;
    if (num_rows == 1) {
      StoreUpTo<V>(out + i, load(0, i), n);
      continue;
    }
    typename V::F rows[V::kWidth];
#pragma GCC unroll 16
    for (int r = 0; r < V::kWidth; ++r) rows[r] = r < num_rows ? load(r, i) : V::Zero();
    V::Transpose(rows);
    for (int j = 0; j < n; ++j) V::StoreFirst(out + (i + j) * num_rows, rows[j], num_rows);
  }
}

// A vector of the elements from k on, zeros beyond num_k.
template <class V>
[[gnu::always_inline]] inline typename V::F LoadBefore(const float* x, int64_t k, int64_t num_k) {
  if (k + V::kWidth <= num_k) return V::Load(x + k);
  return k < num_k ? V::LoadFirst(x + k, static_cast<int>(num_k - k)) : V::Zero();
}

template <class V>
void PackF32(const float* x, int64_t ldx, int num_rows, int64_t num_k, void* out) {
  PackTransposed<V>(num_rows, num_k, static_cast<float*>(out),
                    [=](int r, int64_t k) { return LoadBefore<V>(x + r * ldx, k, num_k); });
}

template <class V>
void PackBf16(const float* x, int64_t ldx, int num_rows, int64_t num_k, void* out) {
  const auto rounded = [=](int r, int64_t k) {
    return V::RoundToBf16(LoadBefore<V>(x + r * ldx, k, num_k));
  };
  if constexpr (V::kNativePairs) {
    PackTransposed<V>(num_rows, (num_k + 1) / 2, static_cast<float*>(out),
                      [=](int r, int64_t pair) {
                        return V::JoinPairs(rounded(r, 2 * pair), rounded(r, 2 * pair + V::kWidth));
                      });
  } else {
    PackTransposed<V>(num_rows, (num_k + 1) / 2 * 2, static_cast<float*>(out), rounded);
  }
}

}  // namespace
}  // namespace lockstep::cpu
