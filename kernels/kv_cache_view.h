// The paged KV cache as kernels see it.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace lockstep {

// One layer's share of the paged KV cache on this rank.
// v: [num_blocks, num_kv_heads, block_size, head_dim], dtype kF32, kBF16 or, where
// Backend::HoldsF16, kF16 (rounded to nearest when written). k: as many elements; how they lie
// within a head's block is the backend's own. The CPU bodies transpose them so that a vector runs
// over its tokens: f32 [head_dim, block_size], the others [head_dim / 2, block_size, 2]; head_dim
// is even.
struct KvCacheView {
  void* k = nullptr;
  void* v = nullptr;
  DType dtype = DType::kF32;
  int64_t num_blocks = 0;
  int num_kv_heads = 0;
  int block_size = 0;  // tokens
  int head_dim = 0;
};

}  // namespace lockstep
