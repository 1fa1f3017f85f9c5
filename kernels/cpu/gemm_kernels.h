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

constexpr int64_t kPanelRowBytes = kPanelColumns * 4;  // 32 f32, or 32 pairs of bf16
constexpr int64_t kStreamAheadBytes = 1024;

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
  // Keeps the compiler from moving work across and, to make room for it, sums to the stack.
  void Pin() {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) V::Pin(sum[r][v]);
    }
  }
  // sum[r][v + 0, 1] += x[r] * w[0, 1]
  void AddProducts(const float* x, const typename V::F (&w)[2], int v) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename V::F xr = V::Set(x[r]);
      V::FmaInto(sum[r][v], xr, w[0]);
      V::FmaInto(sum[r][v + 1], xr, w[1]);
    }
  }
};

// Fetches panel rows that will be needed later, one per step while a tile is computed.
struct Fetch {
  const char* row = nullptr;
  int64_t num_rows = 0;

  template <class V, int kColumns>
  void Step(int64_t step) {
    if (step >= num_rows) return;
    V::Prefetch(row + step * kPanelRowBytes);
    if constexpr (kColumns > 16) V::Prefetch(row + step * kPanelRowBytes + kPanelRowBytes / 2);
  }
};

// x: [num_k][kRows]; w: rows of kVecs vectors, ldw apart; c: [kRows][ldc].
template <class V, int kRows, int kVecs>
void TileF32(const float* x, const float* w, int64_t ldw, int64_t num_k, float* c, int64_t ldc,
             bool fresh, Fetch fetch) {
  Accumulators<V, kRows, kVecs> acc;
  acc.Init(c, ldc, fresh);
  for (int64_t k = 0; k < num_k; ++k) {
    fetch.Step<V, kVecs * V::kWidth>(k);
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; v += 2) {
      const typename V::F columns[2] = {V::Load(w + v * V::kWidth),
                                        V::Load(w + (v + 1) * V::kWidth)};
      acc.AddProducts(x, columns, v);
    }
    acc.Pin();
    x += kRows;
    w += ldw;
  }
  acc.Store(c, ldc);
}

// x: [num_pairs][2][kRows] f32, or [num_pairs][kRows] pairs when the policy multiplies pairs
// itself; w: panel rows of 32 pairs, from the tile's first column on.
template <class V, int kRows, int kVecs>
void TileBf16(const void* x_tile, const uint32_t* w, int64_t num_pairs, float* c, bool fresh,
              Fetch fetch) {
  Accumulators<V, kRows, kVecs> acc;
  acc.Init(c, kPanelColumns, fresh);
  const float* x = static_cast<const float*>(x_tile);
  const uint32_t* x_pairs = static_cast<const uint32_t*>(x_tile);
  for (int64_t p = 0; p < num_pairs; ++p) {
    fetch.Step<V, kVecs * V::kWidth>(p);
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; v += 2) {
      const typename V::Pairs pairs[2] = {V::LoadPairs(w + v * V::kWidth),
                                          V::LoadPairs(w + (v + 1) * V::kWidth)};
      if constexpr (V::kNativePairs) {
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const typename V::Pairs xr = V::SetPair(x_pairs[r]);
          acc.sum[r][v] = V::DotPairs(acc.sum[r][v], xr, pairs[0]);
          acc.sum[r][v + 1] = V::DotPairs(acc.sum[r][v + 1], xr, pairs[1]);
        }
      } else {
        acc.AddProducts(x + kRows, {V::OddOf(pairs[0]), V::OddOf(pairs[1])}, v);
        acc.Pin();
        acc.AddProducts(x, {V::EvenOf(pairs[0]), V::EvenOf(pairs[1])}, v);
        acc.Pin();
      }
    }
    x_pairs += kRows;
    x += 2 * kRows;
    w += kPanelColumns;
  }
  acc.Store(c, kPanelColumns);
}

// All 32 columns for one tile: in one sweep if the registers hold them, else in sweeps of two
// vectors.
template <class V, int kRows, bool kBf16>
void PanelTile(const GemmBlock& block, const void* x, float* c, Fetch fetch) {
  constexpr int kVecs = kRows <= kStreamingRows<V> ? kPanelColumns / V::kWidth : 2;
  constexpr int kColumns = kVecs * V::kWidth;
  for (int column = 0; column < kPanelColumns; column += kColumns) {
    const Fetch half = {fetch.row + column * 4, fetch.num_rows};
    if constexpr (kBf16) {
      TileBf16<V, kRows, kVecs>(x, static_cast<const uint32_t*>(block.panel) + column,
                                block.num_k / 2, c + column, block.fresh, half);
    } else {
      TileF32<V, kRows, kVecs>(static_cast<const float*>(x),
                               static_cast<const float*>(block.panel) + column, kPanelColumns,
                               block.num_k, c + column, kPanelColumns, block.fresh, half);
    }
  }
}

// The instance for a number of rows known at run time only.
template <class V, bool kBf16, int kRows = V::kTileRows>
void PanelTileOf(int num_rows, const GemmBlock& block, const void* x, float* c, Fetch fetch) {
  if (num_rows == kRows) {
    PanelTile<V, kRows, kBf16>(block, x, c, fetch);
  } else if constexpr (kRows > 1) {
    PanelTileOf<V, kBf16, kRows - 1>(num_rows, block, x, c, fetch);
  }
}

// While the panel's block serves its tiles from the first-level cache, each tile fetches its share
// of the next block, so that memory is busy throughout. A single sweep over the panel fetches a
// little ahead of itself instead.
template <class V, bool kBf16>
void Gemm(const GemmBlock& block) {
  constexpr int kBytesPerElement = kBf16 && V::kNativePairs ? 2 : 4;
  const int64_t panel_rows = kBf16 ? block.num_k / 2 : block.num_k;
  const int num_tiles = (block.num_rows + V::kTileRows - 1) / V::kTileRows;
  const char* tile = static_cast<const char*>(block.rows);
  const bool streaming = block.num_rows <= kStreamingRows<V>;
  for (int t = 0; t < num_tiles; ++t) {
    const int rows_left = block.num_rows - t * V::kTileRows;
    const int rows = rows_left < V::kTileRows ? rows_left : V::kTileRows;
    Fetch fetch;
    if (streaming) {
      fetch = {static_cast<const char*>(block.panel) + kStreamAheadBytes, panel_rows};
    } else if (block.next_panel != nullptr) {
      const int64_t begin = panel_rows * t / num_tiles;
      const int64_t end = panel_rows * (t + 1) / num_tiles;
      fetch = {static_cast<const char*>(block.next_panel) + begin * kPanelRowBytes, end - begin};
    }
    PanelTileOf<V, kBf16>(rows, block, tile + block.first_k * rows * kBytesPerElement,
                          block.c + t * V::kTileRows * kPanelColumns, fetch);
    tile += block.tile_stride_bytes;
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
