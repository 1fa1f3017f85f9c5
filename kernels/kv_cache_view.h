// The paged KV cache as kernels see it.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace lockstep {

// One layer's share of the paged KV cache on this rank.
// v: [num_blocks, num_kv_heads, block_size, head_dim], dtype kF32, kBF16, kE4M3 or, where
// Backend::HoldsF16, kF16 (rounded to nearest when written). k: as many elements; how they lie
// within a head's block is the backend's own. The CPU bodies transpose them so that a vector runs
// over its tokens: f32 [head_dim, block_size], the others [head_dim / 2, block_size, 2]; head_dim
// is even. Over kE4M3, what is kept is a key times 1 / k_scale (rounded twice) and a value times
// 1 / v_scale; of other dtypes the scales are 1.
struct KvCacheView {
  void* k = nullptr;
  void* v = nullptr;
  DType dtype = DType::kF32;
  int64_t num_blocks = 0;
  int num_kv_heads = 0;
  int block_size = 0;  // tokens
  int head_dim = 0;
  float k_scale = 1.0f;  // normal
  float v_scale = 1.0f;
};

}  // namespace lockstep
