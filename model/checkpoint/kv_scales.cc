#include "model/checkpoint/kv_scales.h"

#include <array>
#include <cstddef>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/host_rows.h"
#include "model/checkpoint/stored_matrix.h"
#include "model/json/strict_json.h"

namespace lockstep {
namespace {

constexpr std::array<const char*, 3> kKeyScales = {"self_attn.k_scale", "self_attn.k_proj.k_scale",
                                                   "self_attn.k_proj.output_scale"};
constexpr std::array<const char*, 3> kValueScales = {
    "self_attn.v_scale", "self_attn.v_proj.v_scale", "self_attn.v_proj.output_scale"};
// What nothing here is multiplied by.
constexpr std::array<const char*, 3> kOtherScales = {
    "self_attn.q_scale", "self_attn.q_proj.output_scale", "self_attn.prob_output_scale"};
// Beyond these a key or value of any model would be lost, or its inverse.
constexpr float kLeastScale = 0x1p-60f;
constexpr float kMostScale = 0x1p60f;

absl::StatusOr<float> ReadScale(const Checkpoint& checkpoint, const TensorInfo& tensor,
                                const std::string& name) {
  if (!tensor.dtype.has_value() || tensor.num_bytes != DTypeBytes(*tensor.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", Quoted(name), " is ", tensor.dtype_name, " of ", tensor.num_bytes,
                     " bytes: scales of an fp8 KV cache are one number for each layer"));
  }
  std::array<std::byte, 4> bytes;
  RETURN_IF_ERROR(checkpoint.Read(tensor, 0, 1, 0, 1, bytes.data()));
  float scale = 0;
  WidenRow(bytes.data(), *tensor.dtype, 1, &scale);
  if (!(scale >= kLeastScale && scale <= kMostScale)) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(name), " is ", scale,
                                                   ", a scale of an fp8 KV cache is from 2^-60 to "
                                                   "2^60"));
  }
  return scale;
}

absl::StatusOr<float> FindScale(const Checkpoint& checkpoint, int64_t layer,
                                const std::array<const char*, 3>& names) {
  for (const char* suffix : names) {
    const std::string name = absl::StrCat("model.layers.", layer, ".", suffix);
    const auto tensor = checkpoint.Find(name);
    if (tensor.ok()) return ReadScale(checkpoint, **tensor, name);
  }
  return 1.0f;
}

}  // namespace

absl::StatusOr<KvScales> ReadKvScales(const Checkpoint& checkpoint, int64_t layer) {
  KvScales scales;
  ASSIGN_OR_RETURN(scales.k, FindScale(checkpoint, layer, kKeyScales));
  ASSIGN_OR_RETURN(scales.v, FindScale(checkpoint, layer, kValueScales));
  return scales;
}

bool IsKvScale(std::string_view tensor) {
  const absl::string_view name(tensor.data(), tensor.size());
  for (const auto& suffixes : {kKeyScales, kValueScales, kOtherScales}) {
    for (const char* suffix : suffixes) {
      if (absl::EndsWith(name, absl::StrCat(".", suffix))) return true;
    }
  }
  return false;
}

}  // namespace lockstep
