// What Backend's kernels take, and the numbers that they give: the order of additions is part of
// the contract (kernels/backend.h). Pointers are the backend's own.
#pragma once

#include <cstdint>

#include "kernels/batch_index.h"
#include "kernels/dtype.h"
#include "kernels/kv_cache_view.h"
#include "kernels/linear_weight.h"

namespace lockstep {

// Backend::Embed.
//
// out[i, :] = table[ids[i] - first_id, :], or zeros when ids[i] is outside [first_id, first_id +
// num_rows). table: [num_rows, hidden] of table_dtype (kF32, kBF16, or kF16 where HoldsF16);
// ids: [num_tokens] int32 on the device; out: f32, in which zeros have no sign, so that adding
// the zeros of ranks that do not have a row changes no bit.
struct EmbedArgs {
  const void* table;
  DType table_dtype;
  int64_t num_rows;
  int64_t first_id;
  int64_t hidden;
  const int32_t* ids;
  int64_t num_tokens;
  float* out;
};

// Backend::AddRmsNorm.
//
// residual += delta (when delta is not null; of delta_dtype), then out = residual /
// sqrt(mean(residual^2) + eps) * weight. residual, delta, out: [num_tokens, hidden]; weight: f32
// [hidden]. The sum of squares runs in 16 lanes (lane = index mod 16, fused multiply-add,
// ascending), lanes then added as a binary tree of neighbours; with
// scale = 1 / sqrt(sum / hidden + eps), out = (residual * scale) * weight.
struct RmsNormArgs {
  float* residual;
  const void* delta;
  const float* weight;
  float eps;
  int64_t num_tokens;
  int64_t hidden;
  void* out;  // of LinearInput()
  // The weight that reads out, where nobody else does: the next product (Linear or RoundedLinear)
  // is by it and takes all of out, once, and out is not touched in between. How out lies there
  // until then is the backend's own matter (it may quantize rows as that product would), and no
  // bit of the product depends on it. Null: out is as said, for whoever reads it.
  const LinearWeight* consumer = nullptr;
  // Where these are some of the rows that the consumer reads, and the others are brought from
  // other ranks (RowsToGather): out has room for out_rows, of which these are written from
  // first_out_row on. How rows lie is the same wherever consumers are weights of one shape and
  // out_rows is the same. 0: out has these rows alone.
  int64_t out_rows = 0;
  int64_t first_out_row = 0;
  DType delta_dtype = DType::kF32;  // or what ProductDType has named
};

// Of Backend::RowsToGather: row i in row_bytes at data + i * row_bytes of each array; an array
// without bytes is none.
struct RowArray {
  void* data = nullptr;
  int64_t row_bytes = 0;
};

// Backend::SiluMul.
//
// out[t, i] = silu(gate_up[t, i]) * gate_up[t, width + i]; silu(x) = x / (1 + Exp(0 - x)), Exp
// being the one of kernels/cpu/exp.h.
struct SiluMulArgs {
  const void* gate_up;  // [num_tokens, 2 * width]
  int64_t num_tokens;
  int64_t width;
  void* out;                               // [num_tokens, width] of LinearInput()
  const LinearWeight* consumer = nullptr;  // as RmsNormArgs has it
  DType gate_up_dtype = DType::kF32;       // or what ProductDType has named
};

// What becomes of a token's heads before they are rotated and cached; f32, null for nothing.
//
// qkv += bias; then each head of q and of k becomes (head * scale) * weight with scale = 1 /
// sqrt(sum of its squares / head_dim + eps); on CPUs the sum runs in lanes as RmsNormArgs has it.
struct HeadAdjustments {
  const float* bias = nullptr;    // [(num_heads + 2 * num_kv_heads) * head_dim], as qkv lies
  const float* q_norm = nullptr;  // [head_dim]
  const float* k_norm = nullptr;  // [head_dim]
  float eps = 0.0f;

  bool any() const { return bias != nullptr || q_norm != nullptr || k_norm != nullptr; }
};

// Backend::RopeAndWriteKv.
//
// Adjusts heads, then rotates q in place and k, which like v may be left as it was in qkv (GPT-NeoX
// halves: i pairs with i + head_dim / 2, as Hugging Face checkpoints have it), and writes k and v
// to the cache at slot_mapping: first' = fma(first, cos, -(second * sin)), second' = fma(second,
// cos, first * sin). qkv: [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], q heads then k
// heads then v heads, of qkv_dtype, to which rotated q is rounded. cos, sin: f32 [max_positions,
// head_dim / 2].
struct RopeArgs {
  void* qkv;
  int num_heads;
  const float* cos;
  const float* sin;
  const BatchIndex* batch;
  const KvCacheView* cache;
  DType qkv_dtype = DType::kF32;  // or what ProductDType has named
  HeadAdjustments adjust = {};
};

// Backend::Attention.
//
// Causal attention of every token over its sequence's cached positions 0..positions[t]; GQA:
// query head h reads KV head h / (num_heads / num_kv_heads). qkv as RopeArgs has it (q already
// rotated); out: [num_tokens, num_heads * head_dim]. The context is walked in splits of
// kAttentionSplit tokens counted from position 0: each split gives (max, sum, weighted values),
// splits are merged in ascending order (FlashAttention's online softmax, Dao 2022, section 3). In
// order, with Exp of kernels/cpu/exp.h:
//   score_j  = sum over d of (q_d * (scale * k_scale)) * k_jd
//   weight_j = Exp(score_j - max of the split's scores)
//   sum      = the weights in 16 lanes (lane = j mod 16, ascending), then a binary tree of
//              neighbours
//   value_d  = sum over j of weight_j * v_jd
//   merge    : m = max(max_a, max_b), a = Exp(max_a - m), b = Exp(max_b - m),
//              sum = fma(sum_b, b, sum_a * a), value_d = fma(value_b, b, value_a * a)
//   out_d    = value_d * (1 / (sum / v_scale))
// Scores and values are added up with fused multiply-add from 0: over f32 caches d and j
// ascending; over bf16 caches as Linear multiplies bf16 weights: q_d * scale and, for value_d,
// weight_j are rounded to bf16 first, pairs (of j within the split) add the odd element, then the
// even, a missing last odd one counting as zero, and denormals are flushed. Over e4m3 caches as
// over bf16 ones: every e4m3 number is a bf16.
inline constexpr int kAttentionSplit = 128;
struct AttentionArgs {
  const void* qkv;
  int num_heads;
  float scale;
  const BatchIndex* batch;
  const KvCacheView* cache;
  void* out;                      // of LinearInput()
  DType qkv_dtype = DType::kF32;  // or what ProductDType has named
};

}  // namespace lockstep
