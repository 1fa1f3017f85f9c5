// The table of quantized kernels, one per instruction set: plain pointers in, plain pointers out,
// as vector_kernels.h explains.
//
// One layout of weights serves every instruction set. A panel holds 32 output features; inside it,
// K-slice after K-slice, group after group: 32 scales in bf16, then for every 8 consecutive k
//   int8: two quads of k, each [32 columns][4 k] bytes q + 128;
//   int4: [32 columns][4] bytes, q + 8 of the first quad in the low half of a byte, of the second
//   in the high half.
// A group of n weights takes n rounded up to 8, missing ones being anything: they meet zeros.
//
// Rows of x, in tiles of up to tile_rows: group after group, f32 scale [rows], int32 offset [rows],
// then for every quad [rows][4] bytes q (where tile registers multiply: for every row its bytes q),
// missing ones 0. offset = -(sum of the row's q) x (what is added to weights); a product with
// weights that have no sign becomes right by it.
#pragma once

#include <cstdint>

namespace lockstep::cpu {

inline constexpr int kQuantizedColumns = 32;
inline constexpr int kQuantizedScaleBytes = kQuantizedColumns * 2;
inline constexpr int kQuantizedStep = 8;  // k that lie together
inline constexpr int kMaxQuantizedTileRows = 16;

namespace {  // files of different instruction sets must not share a copy

constexpr int64_t PaddedGroup(int64_t k) {
  return (k + kQuantizedStep - 1) / kQuantizedStep * kQuantizedStep;
}
// Of a panel's group of padded k; bits is 8 or 4.
constexpr int64_t QuantizedGroupBytes(int64_t padded_k, int bits) {
  return kQuantizedScaleBytes + padded_k * kQuantizedColumns * bits / 8;
}
// Of a tile's group of padded k.
constexpr int64_t QuantizedRowBytes(int64_t padded_k) { return 8 + padded_k; }

}  // namespace

// c (+)= rows x panel for a run of groups of one size inside one K-slice.
struct QuantizedBlock {
  const char* rows;  // tile i begins at rows + i * tile_stride_bytes
  int64_t tile_stride_bytes;
  int tile_rows;  // of every tile but the last
  int num_rows;
  int64_t first_row_byte;  // where the run begins in a tile, in bytes per row of the tile
  const char* panel;       // at the run's first group
  int64_t num_groups;
  int group_k;  // padded
  float* c;     // [num_rows][32]
  bool fresh;   // c starts from zero
  float* out;   // where the sums go instead, out_stride apart; null: back to c
  int64_t out_stride;
  const char* fetch;    // read next: fetched into a cache while this is computed; may be null
  int64_t fetch_bytes;  // about
};

struct QuantizedKernels {
  const char* name;
  int tile_rows;  // <= kMaxQuantizedTileRows

  void (*gemm_int8)(const QuantizedBlock& block);
  void (*gemm_int4)(const QuantizedBlock& block);
  // num_rows rows of x, ldx apart, one group of count k, to a tile's group. zero: 128 or 8.
  void (*quantize_rows)(const float* x, int64_t ldx, int num_rows, int count, int zero, char* out);
  // QuantizeWeightGroup (kernels/quantization.h) of one group; returns the bits of the scale.
  uint16_t (*quantize_int8)(const float* w, int count, int8_t* q);
  uint16_t (*quantize_int4)(const float* w, int count, int8_t* q);
};

extern const QuantizedKernels kScalarQuantized;
#if defined(__x86_64__)
extern const QuantizedKernels kAvx2Quantized;
extern const QuantizedKernels kAvxVnniQuantized;
extern const QuantizedKernels kAvx512VnniQuantized;
extern const QuantizedKernels kAmxQuantized;
#endif

}  // namespace lockstep::cpu
