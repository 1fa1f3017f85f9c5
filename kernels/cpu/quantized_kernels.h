// Quantized matrix kernels over a policy: a tile of rows of x times a panel, integers in registers
// for one group, then one fused multiply-add per element into c.
//
// Integer sums are exact, so their order is free and every instruction set takes its own; c is
// added to in the order of groups alone.
#pragma once

#include <cstdint>

#include "kernels/cpu/quantize_groups.h"
#include "kernels/cpu/quantized_table.h"

namespace lockstep::cpu {
namespace {

// How weights are fetched by a single tile, which passes over them once. Measured on Zen 5 as
// shares of the read bandwidth beside it. One thread: int8 for one row takes 93 % past the caches
// and 81 % through them, for four rows 86 and 93 %; int4 takes 94 % from 12 KiB ahead, 80 % from 4.
// Two threads: int8 for one row takes 90 % with the loop over a group unrolled and 108 % with it
// rolled up, since the processor's own prefetching follows a few loads better than 33; four rows
// and int4 do not care.
template <bool kInt4>
constexpr int kPassingRows = kInt4 ? 0 : 2;  // so few rows go past the caches, loops rolled up
template <bool kInt4>
constexpr int64_t FetchAheadBytes(int rows) {
  return kInt4 ? 12288 : rows <= kPassingRows<kInt4> ? 6144 : 8192;
}

// Fetches lines that will be needed later, some with every step of a tile.
struct LineFetch {
  const char* next;
  const char* end;
  // As wide as the words in which callers copy this to the stack: narrower ones, written one way
  // and read another, wait for every store before them, and cost int8 products of many rows 12 %.
  int64_t lines_per_step;

  template <class P, bool kPassing>
  [[gnu::always_inline]] void Step() {
    if (next >= end) return;
    for (int64_t i = 0; i < lines_per_step; ++i) {
      kPassing ? P::PrefetchPassing(next) : P::Prefetch(next);
      next += 64;
    }
  }
};

// kWholeGroups: all groups have the format's size, and the loop over one is unrolled.
template <class P, bool kInt4, int kRows, bool kWholeGroups>
[[gnu::noinline]] void QuantizedTile(const QuantizedBlock& block, const char* x, float* c,
                                     float* out, LineFetch fetch) {
  using Dot = typename P::template Dot<kInt4>;
  constexpr int kChains = kRows <= P::kTwoChainRows ? 2 : 1;   // of integer sums per element
  constexpr int kParts = kQuantizedColumns / (2 * P::kLanes);  // of a panel, two vectors each
  constexpr int64_t kVectorBytes = P::kLanes * 4;
  constexpr int64_t kStepBytes = kQuantizedColumns * (kInt4 ? 4 : 8);
  constexpr int kWholeSteps = (kInt4 ? 32 : 64) / kQuantizedStep;
  const int num_steps = kWholeGroups ? kWholeSteps : block.group_k / kQuantizedStep;
  // Sums of all groups stay in registers where they fit; else c is read and written with each
  // group.
  constexpr bool kKept = kRows <= P::kKeptRows && kParts == 1;
  constexpr int kKeptCount = kKept ? kRows : 1;
  typename P::F kept[kKeptCount][2];
  if constexpr (kKept) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        kept[r][v] = block.fresh ? P::Zero() : P::Load(c + r * kQuantizedColumns + v * P::kLanes);
      }
    }
  }
  const int64_t out_stride = block.out == nullptr ? kQuantizedColumns : block.out_stride;
  const char* panel = block.panel;
  bool fresh = block.fresh;
  for (int64_t group = 0; group < block.num_groups; ++group) {
    const float* x_scales = reinterpret_cast<const float*>(x);
    const int32_t* offsets = reinterpret_cast<const int32_t*>(x) + kRows;
    const char* x_group = x + 8 * kRows;
    const char* w_group = panel + kQuantizedScaleBytes;
#pragma GCC unroll 1
    for (int part = 0; part < kParts; ++part) {
      typename Dot::Sum sum[kRows][2][kChains];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int i = 0; i < 2 * kChains; ++i)
          sum[r][i / kChains][i % kChains] = Dot::Start(i % kChains == 0 ? offsets[r] : 0);
      }
      const char* xq = x_group;
      const char* w = w_group + part * 2 * kVectorBytes;
      const auto take_step = [&]() __attribute__((always_inline)) {
        fetch.template Step<P, kRows <= kPassingRows<kInt4>>();
        typename Dot::Weights quad[2][2];  // [first or second quad][vector]
        Dot::Load(w, quad[0][0], quad[1][0]);
        Dot::Load(w + kVectorBytes, quad[0][1], quad[1][1]);
#pragma GCC unroll 2
        for (int q = 0; q < 2; ++q) {
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r) {
            const auto xr = P::BroadcastQuad(xq + 4 * (q * kRows + r));
            Dot::Add(sum[r][0][q % kChains], quad[q][0], xr);
            Dot::Add(sum[r][1][q % kChains], quad[q][1], xr);
          }
        }
        xq += kQuantizedStep * kRows;
        w += kStepBytes;
      };
      if constexpr (kRows <= kPassingRows<kInt4>) {
#pragma GCC unroll 1
        for (int step = 0; step < num_steps; ++step) take_step();
      } else {
#pragma GCC unroll 8
        for (int step = 0; step < num_steps; ++step) take_step();
      }
      typename P::F scale[2];
      scale[0] = P::WidenScales(panel + part * 4 * P::kLanes);
      scale[1] = P::WidenScales(panel + part * 4 * P::kLanes + 2 * P::kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const auto x_scale = P::Set(x_scales[r]);
        float* sums = c + r * kQuantizedColumns + part * 2 * P::kLanes;
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          auto total = Dot::Finish(sum[r][v][0], offsets[r]);
          if constexpr (kChains == 2) {
            total = P::AddIntegers(total, Dot::Finish(sum[r][v][1], 0));
          }
          const auto factor = P::Mul(x_scale, scale[v]);
          if constexpr (kKept) {
            kept[r][v] = P::Fma(P::ToFloat(total), factor, kept[r][v]);
          } else {
            const auto before = fresh ? P::Zero() : P::Load(sums + v * P::kLanes);
            P::Store(sums + v * P::kLanes, P::Fma(P::ToFloat(total), factor, before));
          }
        }
      }
    }
    fresh = false;
    x += QuantizedRowBytes(num_steps * kQuantizedStep) * kRows;
    panel += kQuantizedScaleBytes + kStepBytes * num_steps;
  }
  if constexpr (kKept) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) P::Store(out + r * out_stride + v * P::kLanes, kept[r][v]);
    }
  } else if (out != c) {
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kQuantizedColumns; i += P::kLanes) {
        P::Store(out + r * out_stride + i, P::Load(c + r * kQuantizedColumns + i));
      }
    }
  }
}

template <class P, bool kInt4, int kRows>
void QuantizedTileOf(int num_rows, const QuantizedBlock& block, const char* x, float* c, float* out,
                     LineFetch fetch) {
  if (num_rows == kRows) {
    if (block.group_k == (kInt4 ? 32 : 64)) {
      QuantizedTile<P, kInt4, kRows, true>(block, x, c, out, fetch);
    } else {
      QuantizedTile<P, kInt4, kRows, false>(block, x, c, out, fetch);
    }
  } else if constexpr (kRows > 1) {
    QuantizedTileOf<P, kInt4, kRows - 1>(num_rows, block, x, c, out, fetch);
  }
}

// What tile `tile` of num_tiles fetches, step_lines with every step of its own: a single one what
// it will come to, several a share each of what the block reads next.
template <bool kInt4>
LineFetch FetchOf(const QuantizedBlock& block, int tile, int num_tiles, int rows,
                  int64_t step_lines) {
  if (num_tiles == 1) {
    return {block.panel + FetchAheadBytes<kInt4>(rows), reinterpret_cast<const char*>(UINTPTR_MAX),
            step_lines};
  }
  if (block.fetch == nullptr) return {nullptr, nullptr, 0};
  const int64_t begin = block.fetch_bytes * tile / num_tiles & ~INT64_C(63);
  const int64_t end = block.fetch_bytes * (tile + 1) / num_tiles;
  return {block.fetch + begin, block.fetch + end, (step_lines + num_tiles - 1) / num_tiles};
}

// body(tile, num_tiles, rows, x, c, out) for every tile of the block; out is null when the sums go
// back to c.
template <class Body>
void ForTiles(const QuantizedBlock& block, Body body) {
  const int num_tiles = (block.num_rows + block.tile_rows - 1) / block.tile_rows;
  const char* x = block.rows;
  for (int t = 0; t < num_tiles; ++t) {
    const int64_t first_row = int64_t{t} * block.tile_rows;
    const int rows_left = block.num_rows - t * block.tile_rows;
    const int rows = rows_left < block.tile_rows ? rows_left : block.tile_rows;
    body(t, num_tiles, rows, x + block.first_row_byte * rows,
         block.c + first_row * kQuantizedColumns,
         block.out == nullptr ? nullptr : block.out + first_row * block.out_stride);
    x += block.tile_stride_bytes;
  }
}

template <class P, bool kInt4>
void QuantizedGemm(const QuantizedBlock& block) {
  ForTiles(block, [&](int t, int num_tiles, int rows, const char* x, float* c, float* out) {
    QuantizedTileOf<P, kInt4, P::kTileRows>(
        rows, block, x, c, out == nullptr ? c : out,
        FetchOf<kInt4>(block, t, num_tiles, rows, kInt4 ? 2 : 4));
  });
}

template <class P>
constexpr QuantizedKernels MakeQuantizedKernels(const char* name) {
  static_assert(P::kTileRows <= kMaxQuantizedTileRows);
  return {name,
          P::kTileRows,
          QuantizedGemm<P, false>,
          QuantizedGemm<P, true>,
          QuantizeRows<false>,
          QuantizeInt8,
          QuantizeInt4};
}

}  // namespace
}  // namespace lockstep::cpu
