// Quantized kernels for processors that multiply tiles of bytes (AMX): 16 rows of x by 32 columns
// of a panel, 64 k at a time, over a policy for the tiles and one for the vectors around them.
//
// A group of weights in its panel (quantized_table.h) is what a tile register takes as it lies:
// rows of quads, 4 k of 16 columns in 64 bytes. Nibbles are spread into bytes before. The sums of a
// group are the integers of every other instruction set, and so are the floating-point operations
// after them: the results have the same bits.
#pragma once

#include <cstdint>

#include "kernels/cpu/quantized_kernels.h"

namespace lockstep::cpu {
namespace {

constexpr int kTileRegisterRows = 16;
constexpr int64_t kQuadRowBytes = kQuantizedColumns * 4;

// The 4-bit group at w, spread: [group_k / 4][32 columns][4] bytes.
template <class V>
void SpreadNibbles(const char* w, int group_k, char* out) {
  constexpr int64_t kBytes = V::kLanes * 4;
  for (int k = 0; k < group_k; k += kQuantizedStep) {
    for (int64_t at = 0; at < kQuadRowBytes; at += kBytes) {
      const typename V::I bytes = V::LoadBytes(w + at);
      V::StoreBytes(out + at, V::LowHalves(bytes));
      V::StoreBytes(out + kQuadRowBytes + at, V::HighHalves(bytes));
    }
    w += kQuadRowBytes;
    out += 2 * kQuadRowBytes;
  }
}

// c[rows][32] (+)= (sums + the row's offset) * (the row's scale * the column's).
template <class V>
void AddScaledSums(const int32_t* sums, int rows, const char* x, const char* scales, bool fresh,
                   float* c) {
  const float* x_scales = reinterpret_cast<const float*>(x);
  const int32_t* offsets = reinterpret_cast<const int32_t*>(x) + rows;
  for (int column = 0; column < kQuantizedColumns; column += V::kLanes) {
    const typename V::F scale = V::WidenScales(scales + column * 2);
    for (int r = 0; r < rows; ++r) {
      const int at = r * kQuantizedColumns + column;
      const typename V::I total = V::AddIntegers(
          V::LoadBytes(reinterpret_cast<const char*>(sums + at)), V::SetInteger(offsets[r]));
      const typename V::F factor = V::Mul(V::Set(x_scales[r]), scale);
      const typename V::F before = fresh ? V::Zero() : V::Load(c + at);
      V::Store(c + at, V::Fma(V::ToFloat(total), factor, before));
    }
  }
}

template <class V, class Tiles, bool kInt4>
void MultiplyTile(const QuantizedBlock& block, int rows, const char* x, float* c, float* out,
                  LineFetch fetch) {
  constexpr int64_t kMaxQuads = (kInt4 ? 32 : 64) / 4;
  alignas(64) int32_t sums[kTileRegisterRows * kQuantizedColumns];
  alignas(64) char spread[kInt4 ? kMaxQuads * kQuadRowBytes : 1];
  const int64_t group_bytes = QuantizedGroupBytes(block.group_k, kInt4 ? 4 : 8);
  Tiles tiles(rows, block.group_k);
  const char* panel = block.panel;
  for (int64_t group = 0; group < block.num_groups; ++group) {
    for (int64_t line = 0; line < group_bytes; line += 64) fetch.template Step<V, false>();
    const char* w = panel + kQuantizedScaleBytes;
    if constexpr (kInt4) {
      SpreadNibbles<V>(w, block.group_k, spread);
      w = spread;
    }
    tiles.Multiply(x + 8 * rows, w, sums);
    AddScaledSums<V>(sums, rows, x, panel, block.fresh && group == 0, c);
    x += QuantizedRowBytes(block.group_k) * rows;
    panel += group_bytes;
  }
  if (out == nullptr) return;
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < kQuantizedColumns; i += V::kLanes) {
      V::Store(out + r * block.out_stride + i, V::Load(c + r * kQuantizedColumns + i));
    }
  }
}

template <class V, class Tiles, bool kInt4>
void TiledGemm(const QuantizedBlock& block) {
  ForTiles(block, [&](int t, int num_tiles, int rows, const char* x, float* c, float* out) {
    MultiplyTile<V, Tiles, kInt4>(block, rows, x, c, out,
                                  FetchOf<kInt4>(block, t, num_tiles, rows, 1));
  });
}

template <class V, class Tiles>
constexpr QuantizedKernels MakeTiledKernels(const char* name) {
  return {name,
          kTileRegisterRows,
          TiledGemm<V, Tiles, false>,
          TiledGemm<V, Tiles, true>,
          QuantizeRows<true>,
          QuantizeInt8,
          QuantizeInt4};
}

}  // namespace
}  // namespace lockstep::cpu
