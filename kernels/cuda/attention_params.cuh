// What the attention kernels share: their parameters, which rows a block works on, and where
// results go. A row is one query token of one head.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.cuh"

namespace lockstep::cuda {

struct AttentionParams {
  const void* qkv;  // [num_tokens, num_heads + 2 num_kv_heads, head_dim]
  DType qkv_dtype;  // kF32 or kBF16
  void* out;        // [num_tokens, num_heads, head_dim]
  DType out_dtype;
  const void* k;  // [num_blocks, num_kv_heads, block_size, head_dim]
  const void* v;
  const int32_t* positions;  // for merging alone
  const int32_t* query_starts;
  const int32_t* context_lens;
  const int32_t* block_tables;
  int num_tokens;
  // The tokens that this launch is for; others, of the same tiles, are left to other launches.
  int first_token;
  int end_token;
  int num_seqs;
  // Every sequence has at most one token, token s being sequence s's: nothing is to be searched.
  bool tokens_are_sequences;
  int64_t max_blocks_per_seq;
  int num_heads;
  int num_kv_heads;
  int group;  // num_heads / num_kv_heads
  Divisor by_group;
  int head_dim;
  int block_size;
  Divisor by_block_size;
  float scale_log2;  // of scores, such that weights are powers of two
  int split_tokens;
  int max_splits;
  // Of splits, for rows with more than one: unnormalised values, [tokens of the launch, num_heads,
  // max_splits, head_dim], and {max (log2), sum}, [tokens of the launch, num_heads, max_splits].
  float* partial_values;
  float2* partial_stats;
  // Set when a wait within the kernel takes too long; null: then the kernel stops with an error.
  uint32_t* failed_waits;
};

// The last of `count` ascending starts that is not above x, starts[0] being so.
template <typename Start>
__device__ int LastNotAbove(int count, int x, const Start& start) {
  int low = 0;
  int high = count;  // start(low) <= x < start(high)
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (start(middle) <= x) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

__device__ inline int SequenceOfToken(const AttentionParams& p, int token) {
  if (p.tokens_are_sequences) return token;
  return LastNotAbove(p.num_seqs, token, [&](int seq) { return p.query_starts[seq]; });
}

__device__ inline int PositionOf(const AttentionParams& p, int token, int seq) {
  const int end = p.tokens_are_sequences ? token + 1 : p.query_starts[seq + 1];
  return p.context_lens[seq] - (end - token);
}

// Row of the cache, in units of head_dim elements, that a position's key and value have.
__device__ inline uint32_t CacheRow(const AttentionParams& p, const int32_t* block_table,
                                    int kv_head, int position) {
  const int block = position / p.by_block_size;
  return (static_cast<uint32_t>(block_table[block]) * p.num_kv_heads + kv_head) * p.block_size +
         (position - block * p.block_size);
}

// Q: what qkv_dtype says.
template <typename Q>
__device__ inline const Q* QueryRow(const AttentionParams& p, int token, int head) {
  const int64_t heads = p.num_heads + 2 * p.num_kv_heads;
  return static_cast<const Q*>(p.qkv) + (token * heads + head) * p.head_dim;
}

// Of a row of the launch; partial results are counted from it.
__device__ inline int64_t PartialRow(const AttentionParams& p, int token, int head) {
  return int64_t{token - p.first_token} * p.num_heads + head;
}

// Where one split of one row leaves its result: the row of out when it is the only one, else its
// partial result, to be merged.
class RowResult {
 public:
  __device__ RowResult(const AttentionParams& p, int token, int head, int split, bool only)
      : head_dim_(p.head_dim), dtype_(only ? p.out_dtype : DType::kF32) {
    if (only) {
      row_ = int64_t{token} * p.num_heads + head;
      values_ = p.out;
    } else {
      row_ = PartialRow(p, token, head) * p.max_splits + split;
      stats_ = p.partial_stats + row_;
      values_ = p.partial_values;
    }
  }

  // What the values are to be multiplied by before they are written.
  __device__ float Scale(float sum) const { return stats_ == nullptr ? 1.0f / sum : 1.0f; }
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
  int64_t row_;
  int head_dim_;
  DType dtype_;
  void* values_;
  float2* stats_ = nullptr;
};

}  // namespace lockstep::cuda
