// Where scheduling (portable code, threads) meets arithmetic (one file per instruction set): a
// table of functions over plain pointers. Every function works on the calling thread alone and
// touches nothing but its arguments.
//
// The instruction-set files include no header with inline functions that other files share: the
// linker keeps one copy of such a function, and it must not be the one with instructions that this
// processor lacks.
#pragma once

#include <cstdint>

#include "kernels/cpu/quantized_table.h"

namespace lockstep::cpu {

inline constexpr int kSplitTokens = 128;  // == kAttentionSplit
inline constexpr int kMaxTileRows = 16;
inline constexpr int kMaxPanelColumns = 32;

// c (+)= rows x panels, for one run of k inside one K-slice. A panel holds panel_columns output
// features: f32 [k][panel_columns], bf16 [k / 2][panel_columns][2].
struct GemmBlock {
  const void* rows;  // the run's row tiles as pack_* makes them, tile i at i * tile_stride_bytes
  int64_t tile_stride_bytes;
  int tile_rows;  // of every tile but the last
  int num_rows;
  int64_t num_k;       // of the run; bf16: even
  const void* panels;  // the first panel, at the run's first k
  int64_t panel_stride_bytes;
  int num_panels;
  float* c;  // [num_panels][c_panel_stride], each [num_rows][panel_columns]
  int64_t c_panel_stride;
  bool fresh;              // sums start from zero, else from c
  const void* next_panel;  // the panels read after this block, panel_stride_bytes apart, or null
  // After the last run of a slice: for m = 1 .. num_merges the sums become (c - m * merge_stride) +
  // sums. Then they go to c - num_merges * merge_stride or, where out is not null, to
  // out: [num_rows] rows, out_stride floats apart, of the first out_columns columns.
  int num_merges;
  int64_t merge_stride;
  float* out;
  int64_t out_stride;
  int64_t out_columns;
};

// Positions of a split whose keys, and whose values, lie in one piece.
inline constexpr int kGroupTokens = 16;
inline constexpr int kSplitGroups = kSplitTokens / kGroupTokens;

// Where a split lies in the cache. A group's keys: lines of words, one per position (f32 an
// element, bf16 a pair of them), key_line_bytes apart; its values: rows of head_dim. Groups past
// the last position point to something readable.
struct SplitGroups {
  const char* k[kSplitGroups];
  const char* v[kSplitGroups];
};

// What attention over some positions gives for each of some rows.
struct SoftmaxRows {
  float* max;     // [num_rows]
  float* sum;     // [num_rows]
  float* values;  // [num_rows][head_dim]
};

// One split of one KV head for a tile of query rows.
struct SplitAttention {
  const float* q;  // tiles as pack_queries_* makes them, tile i at q + i * tile_rows * head_dim
  int num_rows;
  const int32_t* row_lens;  // [num_rows] how many of the split's positions each row sees, 0..128
  const SplitGroups* at;
  const SplitGroups* next;  // what follows, its keys to be fetched meanwhile; if nothing, `at`
  int64_t key_line_bytes;
  int num_positions;  // 1..128, = max of row_lens
  int head_dim;
  bool bf16;        // the cache's dtype; else f32
  float* weights;   // scratch [num_rows][128], 64-byte aligned
  SoftmaxRows out;  // rows with row_lens 0 mean nothing
};

struct VectorKernels {
  const char* name;
  int tile_rows;  // at most, <= kMaxTileRows
  // With so many rows or fewer, the registers hold the sums of two panels, which gemm_* takes
  // together: twice the independent chains, and the few rows of a decode step leave room.
  int two_panel_rows;
  int panel_columns;   // <= kMaxPanelColumns
  bool pairs_as_bf16;  // pack_bf16 keeps pairs of bf16 (uint32 per pair); else widened f32 per
                       // element

  // x: [num_rows <= tile_rows] rows of num_k, ldx apart -> [num_k][num_rows]; bf16 rounds to
  // nearest even and appends a zero when num_k is odd: [num_k / 2][num_rows][2] or
  // [num_k][num_rows].
  void (*pack_f32)(const float* x, int64_t ldx, int num_rows, int64_t num_k, void* out);
  void (*pack_bf16)(const float* x, int64_t ldx, int num_rows, int64_t num_k, void* out);
  void (*gemm_f32)(const GemmBlock& block);
  void (*gemm_bf16)(const GemmBlock& block);

  // out[d][row] = rows[row][d] * scale; num_rows <= tile_rows. For bf16 caches rounded, as pairs
  // out[d / 2][row] where pairs_as_bf16.
  void (*pack_queries_f32)(const float* const* rows, int num_rows, int head_dim, float scale,
                           float* out);
  void (*pack_queries_bf16)(const float* const* rows, int num_rows, int head_dim, float scale,
                            float* out);
  void (*attend_split)(const SplitAttention& args);
  // total = merge of itself and the next split's.
  void (*merge_softmax)(const SoftmaxRows& total, const SoftmaxRows& next, int num_rows,
                        int head_dim);
  // out = values * (1 / sum)
  void (*normalise)(const float* values, float sum, int head_dim, float* out);

  void (*add_rms_norm)(float* residual, const float* delta, const float* weight, float eps,
                       int64_t hidden, float* out);
  void (*silu_mul)(const float* gate, const float* up, int64_t count, float* out);
  void (*rotate)(float* x, const float* cos, const float* sin, int half);
  void (*add)(float* dst, const float* src, int64_t count);
  void (*widen_bf16)(const uint16_t* src, int64_t count, float* dst);
  void (*round_bf16)(const float* src, int64_t count, uint16_t* dst);
  void (*widen_e4m3)(const uint8_t* src, int64_t count, uint16_t* dst);  // to bf16

  const QuantizedKernels* quantized;  // for weights of 8 and 4 bits
};

extern const VectorKernels kScalarKernels;
#if defined(__x86_64__)
extern const VectorKernels kAvx2Kernels;
extern const VectorKernels kAvxVnniKernels;  // AVX2 and AVX-VNNI
extern const VectorKernels kAvx512Kernels;
extern const VectorKernels kAvx512VnniKernels;
extern const VectorKernels kAvx512Bf16Kernels;  // and VNNI
extern const VectorKernels kAmxKernels;         // AVX-512, VNNI and tiles of bytes
extern const VectorKernels kAmxPairsKernels;    // the same with bf16 pairs
#endif

}  // namespace lockstep::cpu
