// Over which KV caches there is attention on GPUs: asked where there is no CUDA, too.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace lockstep::cuda {

// Bf16 and f16 caches take head sizes that are multiples of 8 up to 128, e4m3 caches multiples of
// 16, f32 caches any even one up to 256.
constexpr bool AttentionSupports(DType kv_dtype, int64_t head_dim) {
  if (head_dim <= 0) return false;
  if (kv_dtype == DType::kF32) return head_dim % 2 == 0 && head_dim <= 256;
  return head_dim % (kv_dtype == DType::kE4M3 ? 16 : 8) == 0 && head_dim <= 128;
}

}  // namespace lockstep::cuda
