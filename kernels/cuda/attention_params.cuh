// What the attention kernels share: their parameters, where the cache's rows are, and where results
// go. A row is one query token of one head.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention_work.h"
#include "kernels/cuda/device.cuh"

namespace lockstep::cuda {

struct AttentionParams {
  const void* qkv;  // [num_tokens, num_heads + 2 num_kv_heads, head_dim]
  DType qkv_dtype;  // kF32 or kBF16
  void* out;        // [num_tokens, num_heads, head_dim]
  DType out_dtype;
  const void* k;  // [num_blocks, num_kv_heads, block_size, head_dim]
  const void* v;
  // Of the batch, read before earlier kernels have ended: by LoadFromCache2 (kernel_stream.h).
  const int32_t* block_tables;
  // Of this launch.
  const AttentionHeader* header;
  const AttentionItem* items;
  const AttentionMerge* merges;
  int num_heads;
  int num_kv_heads;
  int group;  // num_heads / num_kv_heads
  Divisor by_group;
  int head_dim;
  int block_size;
  Divisor by_block_size;
  float scale_log2;   // of scores, such that weights are powers of two
  float value_scale;  // of results
  // Of tiles with several splits: for each split [num_kv_heads, rows of the tile] of unnormalised
  // values, [head_dim], and of {max (log2), sum}.
  int partial_rows;  // of a tile, at most
  float* partial_values;
  float2* partial_stats;
  // Set when a wait within the kernel takes too long; null: then the kernel stops with an error.
  uint32_t* failed_waits;
};

// Row of the cache, in units of head_dim elements, that a position's key and value have.
__device__ inline uint32_t CacheRow(const AttentionParams& p, const int32_t* block_table,
                                    int kv_head, int position) {
  const int block = position / p.by_block_size;
  const auto cached = static_cast<uint32_t>(LoadFromCache2(block_table + block));
  return (cached * p.num_kv_heads + kv_head) * p.block_size + (position - block * p.block_size);
}

// Q: what qkv_dtype says.
template <typename Q>
__device__ inline const Q* QueryRow(const AttentionParams& p, int token, int head) {
  const int64_t heads = p.num_heads + 2 * p.num_kv_heads;
  return static_cast<const Q*>(p.qkv) + (token * heads + head) * p.head_dim;
}

// Rows of a tile's partial results, of each KV head.
__device__ inline int PartialRows(const AttentionParams& p, const AttentionItem& item) {
  return min(p.partial_rows, item.num_rows - item.first_row);
}
// Of a row of a tile, counted from its first, in the partial results.
__device__ inline int PartialRow(const AttentionParams& p, const AttentionItem& item, int kv_head,
                                 int row) {
  return item.slot * p.num_kv_heads + kv_head * PartialRows(p, item) + row;
}

// Where one split of one row leaves its result: the row of out when it is the only one, else its
// partial result, to be merged.
class RowResult {
 public:
  // A row of out, token * num_heads + head.
  __device__ static RowResult Whole(const AttentionParams& p, int row) {
    return RowResult(p, p.out_dtype, p.value_scale, row, p.out, nullptr);
  }
  // A PartialRow.
  __device__ static RowResult Partial(const AttentionParams& p, int row) {
    return RowResult(p, DType::kF32, 1.0f, row, p.partial_values, p.partial_stats + row);
  }

  // What the values are to be multiplied by before they are written.
  __device__ float Scale(float sum) const {
    return stats_ == nullptr ? scale_ * (1.0f / sum) : 1.0f;
  }
  __device__ void WriteStats(float max_log2, float sum) const {
    if (stats_ != nullptr) *stats_ = make_float2(max_log2, sum);
  }
  __device__ void Write(int d, float value) const {
    const int64_t i = row_ * head_dim_ + d;
    if (dtype_ == DType::kF32) {
      static_cast<float*>(values_)[i] = value;
    } else if (dtype_ == DType::kF16) {
      static_cast<F16*>(values_)[i] = Narrow<F16>(value);
    } else {
      static_cast<BF16*>(values_)[i] = Narrow<BF16>(value);
    }
  }
  // Elements d and d + 1; d is even.
  __device__ void WritePair(int d, float first, float second) const {
    const int64_t i = row_ * head_dim_ + d;
    if (dtype_ == DType::kF32) {
      *reinterpret_cast<float2*>(static_cast<float*>(values_) + i) = make_float2(first, second);
    } else {
      *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(values_) + i) =
          dtype_ == DType::kF16 ? Pack<F16>(first, second) : Pack<BF16>(first, second);
    }
  }

 private:
  __device__ RowResult(const AttentionParams& p, DType dtype, float scale, int row, void* values,
                       float2* stats)
      : row_(row),
        head_dim_(p.head_dim),
        dtype_(dtype),
        scale_(scale),
        values_(values),
        stats_(stats) {}

  int64_t row_;
  int head_dim_;
  DType dtype_;
  float scale_;
  void* values_;
  float2* stats_;
};

}  // namespace lockstep::cuda
