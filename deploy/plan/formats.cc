#include "deploy/plan/formats.h"

#include <array>
#include <cmath>
#include <vector>

#include "model/checkpoint/nearest_name.h"

namespace lockstep::plan {
namespace {

// fp8: one f32 scale for 128 x 128 weights (DeepSeek-V3, section 3.3) or per channel: below 0.1 %,
// and counted as 128 x 128. int8: an f16 scale per row of about 4096. int4: f16 scale and 4-bit
// zero point per group of 128 (AWQ, GPTQ). nvfp4: an fp8 scale per 16.
const std::array<WeightFormat, 7>& WeightFormats() {
  static const std::array<WeightFormat, 7> formats = {{
      {"f32", 4.0, 4.0, Operands::k32Bits, false},
      {"bf16", 2.0, 2.0, Operands::k16Bits, false},
      {"fp8", 1.0 + 4.0 / (128 * 128), 2.0, Operands::kFp8, false},
      {"fp8-mlp", 1.0 + 4.0 / (128 * 128), 2.0, Operands::kFp8, true},
      {"int8", 1.0 + 2.0 / 4096, 2.0, Operands::kInt8, false},
      {"int4", 0.5 + (2.0 + 0.5) / 128, 2.0, Operands::k16Bits, false},
      {"nvfp4", 0.5 + 1.0 / 16, 2.0, Operands::kFp4, false},
  }};
  return formats;
}

// int8: an f16 scale per head and token. int4, int2: f16 scale and zero point per group of 32
// (KIVI, arXiv 2402.02750). fp8: one scale per tensor.
const std::array<KvFormat, 6>& KvFormats() {
  static const std::array<KvFormat, 6> formats = {{
      {"f32", 4.0, 0, 0.0},
      {"bf16", 2.0, 0, 0.0},
      {"fp8", 1.0, 0, 0.0},
      {"int8", 1.0, 1 << 20, 2.0},
      {"int4", 0.5, 32, 4.0},
      {"int2", 0.25, 32, 4.0},
  }};
  return formats;
}

template <typename Formats>
auto Find(const Formats& formats, const char* what, const std::string& name)
    -> absl::StatusOr<typename Formats::value_type> {
  const bool is_f16 = name == "f16" || name == "fp16" || name == "float16";
  const std::string wanted = is_f16 ? "bf16" : name;
  std::vector<std::string> names;
  for (const auto& format : formats) {
    if (format.name == wanted) return format;
    names.push_back(format.name);
  }
  return UnknownName(what, name, names);
}

}  // namespace

double KvFormat::BytesOf(int64_t elements) const {
  const double groups =
      scale_group == 0
          ? 0.0
          : std::ceil(static_cast<double>(elements) / static_cast<double>(scale_group));
  return static_cast<double>(elements) * element_bytes + groups * scale_bytes;
}

absl::StatusOr<WeightFormat> FindWeightFormat(const std::string& name) {
  return Find(WeightFormats(), "weight format", name);
}

absl::StatusOr<KvFormat> FindKvFormat(const std::string& name) {
  return Find(KvFormats(), "KV format", name);
}

}  // namespace lockstep::plan
