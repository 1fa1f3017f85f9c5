// What a checkpoint says of a KV cache in 8 bits. Any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "model/checkpoint/checkpoint.h"

namespace lockstep {

// KvCacheView's of a layer.
struct KvScales {
  float k = 1.0f;
  float v = 1.0f;
};

// 1 where there is none. INVALID_ARGUMENT, naming the tensor: it holds more than one number (scales
// of heads or tokens), or one that is no scale.
//
// Names are those that vLLM and SGLang read (maybe_remap_kv_scale_name, get_cache_scale):
// self_attn.k_scale of compressed-tensors, self_attn.k_proj.k_scale of NVIDIA's ModelOpt,
// self_attn.k_proj.output_scale of AMD's Quark and older files.
absl::StatusOr<KvScales> ReadKvScales(const Checkpoint& checkpoint, int64_t layer);

// Is it a tensor that ReadKvScales may read, or a scale beside those (of queries, of
// probabilities)?
bool IsKvScale(std::string_view tensor);

}  // namespace lockstep
