// Matrix kernels over a vector policy: a tile of rows times a panel of 32 columns, accumulated in
// registers.
//
// The shape follows BLIS (Van Zee and van de Geijn 2015, section 3): rows x columns accumulators,
// one broadcast per row and k. Each output element sees its k in ascending order (pairs: odd, even)
// whatever the tile, so tiles, blocks of k and vector widths change no bits: accumulators go to
// memory and back between blocks of k as they are.
#pragma once

#include <cstdint>

#include "kernels/cpu/vector_kernels.h"

namespace lockstep::cpu {
namespace {

// With so many rows or fewer, accumulators for all 32 columns of a panel fit the registers.
template <class V>
constexpr int kStreamingRows = V::kWidth >= 16 ? V::kTileRows : V::kTileRows / 2;

template <class V, int kRows, int kVecs>
struct Accumulators {
  typename V::F sum[kRows][kVecs];

  void Init(const float* c, int64_t ldc, bool fresh) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        sum[r][v] = fresh ? V::Zero() : V::Load(c + r * ldc + v * V::kWidth);
      }
    }
  }
  void Store(float* c, int64_t ldc) const {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) V::Store(c + r * ldc + v * V::kWidth, sum[r][v]);
    }
  }
  // sum[r][v] += x[r] * w[v]
  void AddProducts(const float* x, const typename V::F (&w)[kVecs]) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename V::F xr = V::Set(x[r]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) sum[r][v] = V::Fma(xr, w[v], sum[r][v]);
    }
  }
};

// x: [num_k][kRows]; w: rows of kVecs vectors, ldw apart; c: [kRows][ldc].
template <class V, int kRows, int kVecs>
void TileF32(const float* x, const float* w, int64_t ldw, int64_t num_k, float* c, int64_t ldc,
             bool fresh, int64_t prefetch_bytes) {
  Accumulators<V, kRows, kVecs> acc;
  acc.Init(c, ldc, fresh);
  for (int64_t k = 0; k < num_k; ++k) {
    if (prefetch_bytes != 0) {
      V::Prefetch(reinterpret_cast<const char*>(w) + prefetch_bytes);
      if constexpr (kVecs * V::kWidth > 16)
        V::Prefetch(reinterpret_cast<const char*>(w) + prefetch_bytes + 64);
    }
    typename V::F columns[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) columns[v] = V::Load(w + v * V::kWidth);
    acc.AddProducts(x, columns);
    x += kRows;
    w += ldw;
  }
  acc.Store(c, ldc);
}

// x: [num_pairs][2][kRows] f32, or [num_pairs][kRows] pairs when the policy multiplies pairs
// itself; w: panel rows of 32 pairs, from the tile's first column on.
template <class V, int kRows, int kVecs>
void TileBf16(const void* x_tile, const uint32_t* w, int64_t num_pairs, float* c, bool fresh,
              int64_t prefetch_bytes) {
  Accumulators<V, kRows, kVecs> acc;
  acc.Init(c, kPanelColumns, fresh);
  const float* x = static_cast<const float*>(x_tile);
  const uint32_t* x_pairs = static_cast<const uint32_t*>(x_tile);
  for (int64_t p = 0; p < num_pairs; ++p) {
    if (prefetch_bytes != 0) {
      V::Prefetch(reinterpret_cast<const char*>(w) + prefetch_bytes);
      if constexpr (kVecs * V::kWidth > 16)
        V::Prefetch(reinterpret_cast<const char*>(w) + prefetch_bytes + 64);
    }
    if constexpr (V::kNativePairs) {
      typename V::Pairs columns[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) columns[v] = V::LoadPairs(w + v * V::kWidth);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const typename V::Pairs xr = V::SetPair(x_pairs[r]);
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) acc.sum[r][v] = V::DotPairs(acc.sum[r][v], xr, columns[v]);
      }
      x_pairs += kRows;
    } else {
      typename V::F columns[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) columns[v] = V::OddOf(V::LoadPairs(w + v * V::kWidth));
      acc.AddProducts(x + kRows, columns);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) columns[v] = V::EvenOf(V::LoadPairs(w + v * V::kWidth));
      acc.AddProducts(x, columns);
      x += 2 * kRows;
    }
    w += kPanelColumns;
  }
  acc.Store(c, kPanelColumns);
}

// All 32 columns for one tile: in one sweep if the registers hold them, else in sweeps of two
// vectors.
template <class V, int kRows, bool kBf16>
void PanelTile(const GemmBlock& block, const void* x, float* c, int64_t prefetch_bytes) {
  constexpr int kVecs = kRows <= kStreamingRows<V> ? kPanelColumns / V::kWidth : 2;
  constexpr int kColumns = kVecs * V::kWidth;
  for (int column = 0; column < kPanelColumns; column += kColumns) {
    if constexpr (kBf16) {
      TileBf16<V, kRows, kVecs>(x, static_cast<const uint32_t*>(block.panel) + column,
                                block.num_k / 2, c + column, block.fresh, prefetch_bytes);
    } else {
      TileF32<V, kRows, kVecs>(static_cast<const float*>(x),
                               static_cast<const float*>(block.panel) + column, kPanelColumns,
                               block.num_k, c + column, kPanelColumns, block.fresh, prefetch_bytes);
    }
  }
}

// The instance for a number of rows known at run time only.
template <class V, bool kBf16, int kRows = V::kTileRows>
void PanelTileOf(int num_rows, const GemmBlock& block, const void* x, float* c,
                 int64_t prefetch_bytes) {
  if (num_rows == kRows) {
    PanelTile<V, kRows, kBf16>(block, x, c, prefetch_bytes);
  } else if constexpr (kRows > 1) {
    PanelTileOf<V, kBf16, kRows - 1>(num_rows, block, x, c, prefetch_bytes);
  }
}

// The first tile fetches what comes next while the panel's block, now in the first-level cache,
// serves the others.
template <class V, bool kBf16>
void Gemm(const GemmBlock& block) {
  constexpr int kBytesPerElement = kBf16 && V::kNativePairs ? 2 : 4;
  const char* tile = static_cast<const char*>(block.rows);
  float* c = block.c;
  int64_t prefetch_bytes = block.prefetch_bytes;
  for (int rows_left = block.num_rows; rows_left > 0; rows_left -= V::kTileRows) {
    const int rows = rows_left < V::kTileRows ? rows_left : V::kTileRows;
    const char* x = tile + block.first_k * rows * kBytesPerElement;
    PanelTileOf<V, kBf16>(rows, block, x, c, prefetch_bytes);
    tile += block.tile_stride_bytes;
    c += V::kTileRows * kPanelColumns;
    prefetch_bytes = 0;
  }
}

template <class V>
void PackF32(const float* x, int64_t ldx, int num_rows, int64_t num_k, void* out) {
  float* packed = static_cast<float*>(out);
  for (int r = 0; r < num_rows; ++r) {
    for (int64_t k = 0; k < num_k; ++k) packed[k * num_rows + r] = x[r * ldx + k];
  }
}

template <class V>
void PackBf16(const float* x, int64_t ldx, int num_rows, int64_t num_k, void* out) {
  float* widened = static_cast<float*>(out);
  uint16_t* pairs = static_cast<uint16_t*>(out);
  for (int r = 0; r < num_rows; ++r) {
    for (int64_t k = 0; k < num_k; k += V::kWidth) {
      const int count = num_k - k < V::kWidth ? static_cast<int>(num_k - k) : V::kWidth;
      const typename V::F values =
          count == V::kWidth ? V::Load(x + r * ldx + k) : V::LoadFirst(x + r * ldx + k, count);
      alignas(64) float rounded[V::kWidth];
      V::Store(rounded, V::RoundToBf16(values));
      const int padded = count + count % 2;  // LoadFirst gave the zero
      for (int i = 0; i < padded; ++i) {
        if constexpr (V::kNativePairs) {
          pairs[((k + i) / 2 * num_rows + r) * 2 + (i & 1)] =
              static_cast<uint16_t>(__builtin_bit_cast(uint32_t, rounded[i]) >> 16);
        } else {
          widened[(k + i) * num_rows + r] = rounded[i];
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::cpu
