#include "model/checkpoint/model_shapes.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/checkpoint/nearest_name.h"
#include "model/json/strict_json.h"

namespace lockstep {
namespace {

struct Shape {
  const char* name;
  const char* short_name;
  int64_t hidden_size;
  int64_t intermediate_size;
  int64_t num_layers;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t vocab_size;
  int64_t max_position_embeddings;
  double rope_factor;  // 0: not scaled
  bool tied;
  int64_t num_special_tokens;  // the vocabulary's last ids
};

// Source: config.json of meta-llama/Llama-3.2-1B, -3.2-3B, -3.1-8B, -3.1-70B and -3.1-405B.
constexpr std::array<Shape, 6> kShapes = {{
    {"tiny", "tiny", 256, 768, 4, 8, 4, 32, 4096, 8192, 0, false, 16},
    {"llama-3.2-1b", "1b", 2048, 8192, 16, 32, 8, 64, 128256, 131072, 32, true, 256},
    {"llama-3.2-3b", "3b", 3072, 8192, 28, 24, 8, 128, 128256, 131072, 32, true, 256},
    {"llama-3.1-8b", "8b", 4096, 14336, 32, 32, 8, 128, 128256, 131072, 8, false, 256},
    {"llama-3.1-70b", "70b", 8192, 28672, 80, 64, 8, 128, 128256, 131072, 8, false, 256},
    {"llama-3.1-405b", "405b", 16384, 53248, 126, 128, 8, 128, 128256, 131072, 8, false, 256},
}};

ModelConfig ToConfig(const Shape& shape) {
  ModelConfig config;
  config.hidden_size = shape.hidden_size;
  config.intermediate_size = shape.intermediate_size;
  config.num_layers = shape.num_layers;
  config.num_heads = shape.num_heads;
  config.num_kv_heads = shape.num_kv_heads;
  config.head_dim = shape.head_dim;
  config.vocab_size = shape.vocab_size;
  config.max_position_embeddings = shape.max_position_embeddings;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 500000.0;
  if (shape.rope_factor > 0) {
    config.rope_scaling = Llama3RopeScaling{.factor = shape.rope_factor};
  }
  config.tie_word_embeddings = shape.tied;
  config.dtype = DType::kBF16;
  // Llama 3's order of special tokens: begin_of_text, end_of_text, ..., eot_id tenth.
  const auto first_special = static_cast<int32_t>(shape.vocab_size - shape.num_special_tokens);
  config.bos_token_id = first_special;
  config.eos_token_ids = {first_special + 1, first_special + 9};
  return config;
}

const Shape* FindShape(const std::string& name) {
  const auto found = std::find_if(kShapes.begin(), kShapes.end(), [&](const Shape& shape) {
    return name == shape.name || name == shape.short_name;
  });
  return found == kShapes.end() ? nullptr : &*found;
}

const Shape& NearestShape(const std::string& wanted) {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) {
    names.insert(names.end(), {shape.name, shape.short_name});
  }
  return *FindShape(NearestName(wanted, names));
}

}  // namespace

absl::StatusOr<ModelConfig> BuiltInShape(const std::string& name) {
  const Shape* const shape = FindShape(absl::AsciiStrToLower(name));
  if (shape != nullptr) return ToConfig(*shape);
  return absl::InvalidArgumentError(absl::StrCat(
      "shape ", Quoted(name), " is unknown; did you mean ", NearestShape(name).name,
      "? There are: ", absl::StrJoin(BuiltInShapeNames(), ", "), ", or the path of a config.json"));
}

std::vector<std::string> BuiltInShapeNames() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.push_back(shape.name);
  return names;
}

}  // namespace lockstep
