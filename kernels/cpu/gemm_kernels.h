// Matrix kernels over a vector policy: a tile of rows times a panel of two vectors of columns,
// accumulated in registers.
//
// The shape follows BLIS (Van Zee and van de Geijn 2015, section 3): rows x columns accumulators,
// one broadcast per row and k. Each output element sees its k in ascending order (pairs: odd, even)
// whatever the tile, so tiles, blocks of k and vector widths change no bits: accumulators go to
// memory and back between blocks of k as they are. The tree of K-slices is climbed while the sums
// are still in registers.
#pragma once

#include <cstdint>

#include "kernels/cpu/flush_denormals.h"
#include "kernels/cpu/partial_vector.h"
#include "kernels/cpu/vector_kernels.h"

namespace lockstep::cpu {
namespace {

template <class V>
constexpr int kPanelColumns = 2 * V::kWidth;

// A panel's row, in memory: two vectors of f32, or of pairs of bf16.
template <class V>
constexpr int64_t kPanelRowBytes = kPanelColumns<V> * 4;

constexpr int64_t kStreamAheadBytes = 4096;

// See VectorKernels.
template <class V>
constexpr int kTwoPanelRows = V::kTileRows / 2;

// Where a tile's sums come from and go to: GemmBlock's fields, from the tile's first row and column
// on.
struct Sums {
  float* c = nullptr;
  int64_t c_panel_stride = 0;
  bool fresh = true;
  int num_merges = 0;
  int64_t merge_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  int64_t out_panel_stride = 0;
  int64_t out_columns = 0;
};

template <class V, int kRows, int kPanels>
struct Accumulators {
  typename V::F sum[kRows][2 * kPanels];

  static int64_t InC(const Sums& sums, int r, int v) {
    return v / 2 * sums.c_panel_stride + r * kPanelColumns<V> + v % 2 * V::kWidth;
  }
  [[gnu::always_inline]] void Init(const Sums& sums) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < 2 * kPanels; ++v)
        sum[r][v] = sums.fresh ? V::Zero() : V::Load(sums.c + InC(sums, r, v));
    }
  }
  // sum = other + sum
  [[gnu::always_inline]] void AddTo(const Sums& sums, const float* other) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < 2 * kPanels; ++v)
        sum[r][v] = V::Add(V::Load(other + InC(sums, r, v)), sum[r][v]);
    }
  }
  [[gnu::always_inline]] void Store(const Sums& sums, float* c) const {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < 2 * kPanels; ++v) V::Store(c + InC(sums, r, v), sum[r][v]);
    }
  }
  [[gnu::always_inline]] void StoreOut(const Sums& sums) const {
#pragma GCC unroll 4
    for (int v = 0; v < 2 * kPanels; ++v) {
      const int64_t column = v / 2 * sums.out_panel_stride + v % 2 * V::kWidth;
      const int64_t left = sums.out_columns - column;
      const int count = left < V::kWidth ? static_cast<int>(left) : V::kWidth;
      if (count <= 0) continue;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
        StoreUpTo<V>(sums.out + r * sums.out_stride + column, sum[r][v], count);
    }
  }
  [[gnu::always_inline]] void Finish(const Sums& sums) {
    for (int m = 1; m <= sums.num_merges; ++m) AddTo(sums, sums.c - m * sums.merge_stride);
    sums.out != nullptr ? StoreOut(sums)
                        : Store(sums, sums.c - sums.num_merges * sums.merge_stride);
  }
  // After sums whose denormals were flushed: those of the tree are not.
  [[gnu::always_inline]] void FinishFlushed(const Sums& sums) {
    if (sums.num_merges == 0) return Finish(sums);
    Pin();
    const KeepDenormals keep;
    Pin();
    Finish(sums);
  }
  // Keeps the compiler from moving work across and, to make room for it, sums to the stack.
  void Pin() {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < 2 * kPanels; ++v) V::Pin(sum[r][v]);
    }
  }
  // Adds x[r] * w for the two vectors of one panel.
  void AddProducts(const float* x, const typename V::F (&w)[2], int panel) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename V::F xr = V::Set(x[r]);
      V::FmaInto(sum[r][2 * panel], xr, w[0]);
      V::FmaInto(sum[r][2 * panel + 1], xr, w[1]);
    }
  }
};

// Fetches panel rows that will be needed later, one per step while a tile is computed: num_rows
// from `row` on, then as many as there are steps from `next` on (unless null).
struct Fetch {
  const char* row = nullptr;
  int64_t num_rows = 0;
  const char* next = nullptr;
  int64_t panel_stride_bytes = 0;
  bool near = false;  // into the first-level cache; else the second, which has room beside the
                      // block at work

  template <class V, int kPanels>
  [[gnu::always_inline]] void Step(int64_t step) const {
    const char* from = row + step * kPanelRowBytes<V>;
    if (step >= num_rows) {
      if (next == nullptr) return;
      from = next + (step - num_rows) * kPanelRowBytes<V>;
    }
#pragma GCC unroll 2
    for (int panel = 0; panel < kPanels; ++panel) {
      const char* line = from + panel * panel_stride_bytes;
      near ? V::PrefetchNear(line) : V::PrefetchFar(line);
      if constexpr (kPanelRowBytes < V >> 64)
        near ? V::PrefetchNear(line + 64) : V::PrefetchFar(line + 64);
    }
  }
};

// x: [num_k][kRows]; w: kPanels panels, panel_stride floats apart.
template <class V, int kRows, int kPanels>
[[gnu::noinline]] void TileF32(const float* x, const float* w, int64_t panel_stride, int64_t num_k,
                               const Sums& sums, Fetch fetch) {
  Accumulators<V, kRows, kPanels> acc;
  acc.Init(sums);
  for (int64_t k = 0; k < num_k; ++k) {
    fetch.Step<V, kPanels>(k);
#pragma GCC unroll 2
    for (int panel = 0; panel < kPanels; ++panel) {
      const float* row = w + panel * panel_stride;
      acc.AddProducts(x, {V::Load(row), V::Load(row + V::kWidth)}, panel);
    }
    acc.Pin();
    x += kRows;
    w += kPanelColumns<V>;
  }
  acc.Finish(sums);
}

// x: [num_pairs][2][kRows] f32, or [num_pairs][kRows] pairs when the policy multiplies pairs
// itself.
template <class V, int kRows, int kPanels>
[[gnu::noinline]] void TileBf16(const void* x_tile, const uint32_t* w, int64_t panel_stride,
                                int64_t num_pairs, const Sums& sums, Fetch fetch) {
  Accumulators<V, kRows, kPanels> acc;
  acc.Init(sums);
  const float* x = static_cast<const float*>(x_tile);
  const uint32_t* x_pairs = static_cast<const uint32_t*>(x_tile);
  for (int64_t p = 0; p < num_pairs; ++p) {
    fetch.Step<V, kPanels>(p);
#pragma GCC unroll 2
    for (int panel = 0; panel < kPanels; ++panel) {
      const uint32_t* row = w + panel * panel_stride;
      const typename V::Pairs pairs[2] = {V::LoadPairs(row), V::LoadPairs(row + V::kWidth)};
      if constexpr (V::kNativePairs) {
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const typename V::Pairs xr = V::SetPair(x_pairs[r]);
          acc.sum[r][2 * panel] = V::DotPairs(acc.sum[r][2 * panel], xr, pairs[0]);
          acc.sum[r][2 * panel + 1] = V::DotPairs(acc.sum[r][2 * panel + 1], xr, pairs[1]);
        }
      } else {
        acc.AddProducts(x + kRows, {V::OddOf(pairs[0]), V::OddOf(pairs[1])}, panel);
        acc.Pin();
        acc.AddProducts(x, {V::EvenOf(pairs[0]), V::EvenOf(pairs[1])}, panel);
        acc.Pin();
      }
    }
    x_pairs += kRows;
    x += 2 * kRows;
    w += kPanelColumns<V>;
  }
  V::kNativePairs ? acc.Finish(sums) : acc.FinishFlushed(sums);
}

// The instance for a number of rows known at run time only.
template <class V, bool kBf16, int kPanels, int kRows>
void TileOf(int num_rows, const void* x, const void* w, const GemmBlock& block, const Sums& sums,
            Fetch fetch) {
  if (num_rows < kRows) {
    if constexpr (kRows > 1)
      TileOf<V, kBf16, kPanels, kRows - 1>(num_rows, x, w, block, sums, fetch);
  } else if constexpr (kBf16) {
    TileBf16<V, kRows, kPanels>(x, static_cast<const uint32_t*>(w), block.panel_stride_bytes / 4,
                                block.num_k / 2, sums, fetch);
  } else {
    TileF32<V, kRows, kPanels>(static_cast<const float*>(x), static_cast<const float*>(w),
                               block.panel_stride_bytes / 4, block.num_k, sums, fetch);
  }
}

// All row tiles over kPanels panels. While their block serves the tiles from the first-level cache,
// each tile fetches its share of the next, so that memory is busy throughout; a single tile fetches
// a little ahead of itself, at its end into the next block.
template <class V, bool kBf16, int kPanels>
void GemmPanels(const GemmBlock& block, const char* panel, Sums sums, const char* next) {
  constexpr int kMaxRows = kPanels == 2 ? kTwoPanelRows<V> : V::kTileRows;
  const int64_t panel_rows = kBf16 ? block.num_k / 2 : block.num_k;
  const int num_tiles = (block.num_rows + block.tile_rows - 1) / block.tile_rows;
  const char* tile = static_cast<const char*>(block.rows);
  for (int t = 0; t < num_tiles; ++t) {
    const int rows_left = block.num_rows - t * block.tile_rows;
    const int rows = rows_left < block.tile_rows ? rows_left : block.tile_rows;
    Fetch fetch;
    if (num_tiles == 1) {
      const int64_t ahead = kStreamAheadBytes / kPanelRowBytes<V>;
      const int64_t own = panel_rows > ahead ? panel_rows - ahead : 0;
      fetch = {panel + kStreamAheadBytes, own, next, block.panel_stride_bytes, true};
    } else if (next != nullptr) {
      const int64_t begin = panel_rows * t / num_tiles;
      const int64_t end = panel_rows * (t + 1) / num_tiles;
      fetch = {next + begin * kPanelRowBytes<V>, end - begin, nullptr, block.panel_stride_bytes,
               false};
    }
    TileOf<V, kBf16, kPanels, kMaxRows>(rows, tile, panel, block, sums, fetch);
    tile += block.tile_stride_bytes;
    sums.c += block.tile_rows * kPanelColumns<V>;
    if (sums.out != nullptr) sums.out += block.tile_rows * sums.out_stride;
  }
}

template <class V, bool kBf16>
void GemmAnyPanels(const GemmBlock& block) {
  const char* panel = static_cast<const char*>(block.panels);
  Sums sums = {block.c,          block.c_panel_stride, block.fresh,
               block.num_merges, block.merge_stride,   block.out,
               block.out_stride, kPanelColumns<V>,     block.out_columns};
  for (int p = 0; p < block.num_panels;) {
    const int step = block.num_rows <= kTwoPanelRows<V> && p + 2 <= block.num_panels ? 2 : 1;
    const char* next = static_cast<const char*>(block.next_panel);
    if (p + step < block.num_panels) next = panel + step * block.panel_stride_bytes;
    if (step == 2) {
      GemmPanels<V, kBf16, 2>(block, panel, sums, next);
    } else {
      GemmPanels<V, kBf16, 1>(block, panel, sums, next);
    }
    panel += step * block.panel_stride_bytes;
    sums.c += step * block.c_panel_stride;
    if (sums.out != nullptr) sums.out += step * sums.out_panel_stride;
    sums.out_columns -= step * sums.out_panel_stride;
    p += step;
  }
}

template <class V, bool kBf16>
void Gemm(const GemmBlock& block) {
  if constexpr (kBf16 && !V::kNativePairs) {
    const FlushDenormals flush;
    GemmAnyPanels<V, kBf16>(block);
  } else {
    GemmAnyPanels<V, kBf16>(block);
  }
}

}  // namespace
}  // namespace lockstep::cpu
