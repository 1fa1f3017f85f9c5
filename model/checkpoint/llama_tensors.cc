#include "model/checkpoint/llama_tensors.h"

#include <algorithm>
#include <optional>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "model/checkpoint/kv_scales.h"
#include "model/checkpoint/stored_matrix.h"
#include "model/json/strict_json.h"

namespace lockstep {
namespace {

std::string TensorShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Why there is no head: it is quantized, or the embedding was meant.
absl::Status MissingHead(const Checkpoint& checkpoint, const absl::Status& missing) {
  for (const char* name : {"lm_head.weight_packed", "lm_head.qweight"}) {
    if (!checkpoint.Find(name).ok()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(checkpoint.directory().string(), ": tensor ", Quoted(name),
                     ": a quantized LM head is not supported; supported: F32, F16, BF16"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(missing.message(), " and config.json does not say tie_word_embeddings: true"));
}

absl::Status CheckTensor(const Checkpoint& checkpoint, const TensorSpec& spec) {
  absl::StatusOr<const TensorInfo*> tensor = checkpoint.Find(spec.name);
  if (!tensor.ok()) {
    const bool is_head = spec.name == "lm_head.weight";
    return is_head ? MissingHead(checkpoint, tensor.status()) : tensor.status();
  }
  if ((*tensor)->shape != spec.shape) {
    return absl::InvalidArgumentError(absl::StrCat(
        checkpoint.directory().string(), ": tensor ", Quoted(spec.name), " has shape ",
        TensorShapeText((*tensor)->shape), ", config.json makes it ", TensorShapeText(spec.shape)));
  }
  if (!(*tensor)->dtype.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(checkpoint.directory().string(), ": tensor ", Quoted(spec.name), " has dtype ",
                     (*tensor)->dtype_name, "; supported: F32, F16, BF16"));
  }
  return absl::OkStatus();
}

// Of a layer's matrix; tables and norms are never quantized.
bool IsMatrix(const TensorSpec& spec) {
  return spec.shape.size() == 2 && absl::StartsWith(spec.name, "model.layers.");
}

std::string WithoutSuffix(const std::string& name) {
  return name.substr(0, name.size() - std::string_view(".weight").size());
}

absl::Status CheckMatrix(const Checkpoint& checkpoint, const TensorSpec& spec) {
  const absl::Status status =
      OpenMatrix(checkpoint, {WithoutSuffix(spec.name), spec.shape[0], spec.shape[1]}).status();
  if (status.ok() || absl::StartsWith(status.message(), checkpoint.directory().string())) {
    return status;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(checkpoint.directory().string(), ": ", status.message()));
}

constexpr absl::string_view kHead = "lm_head.weight";

// As far as some rows tell.
bool HoldSameNumbers(const Checkpoint& checkpoint, const TensorInfo& a, const TensorInfo& b) {
  constexpr int64_t kMaxRows = 16;
  if (a.dtype_name != b.dtype_name || a.shape != b.shape || a.shape.size() != 2) return false;
  const int64_t num_rows = a.shape[0];
  const int64_t row_bytes = num_rows == 0 ? 0 : a.num_bytes / num_rows;
  std::string row_of_a(static_cast<size_t>(row_bytes), '\0');
  std::string row_of_b = row_of_a;
  const int64_t num_samples = std::min(kMaxRows, num_rows);
  for (int64_t i = 1; i <= num_samples; ++i) {
    const int64_t row = i * num_rows / num_samples - 1;  // the last one among them
    if (!checkpoint.ReadBytes(a, row, row + 1, 0, row_bytes, row_of_a.data()).ok() ||
        !checkpoint.ReadBytes(b, row, row + 1, 0, row_bytes, row_of_b.data()).ok() ||
        row_of_a != row_of_b) {
      return false;
    }
  }
  return true;
}

// Some checkpoints hold the embedding twice.
bool IsTiedHead(const Checkpoint& checkpoint, const std::string& name) {
  if (!checkpoint.config().tie_word_embeddings || name != kHead) return false;
  const auto embedding = checkpoint.Find("model.embed_tokens.weight");
  return embedding.ok() && HoldSameNumbers(checkpoint, **checkpoint.Find(name), **embedding);
}

bool HoldsNoWeights(const std::string& name) {
  return absl::EndsWith(name, ".rotary_emb.inv_freq") || IsKvScale(name);
}

// "model.layers.17.mlp.up_proj.weight" -> 17.
std::optional<int64_t> LayerOf(absl::string_view name) {
  int64_t layer = 0;
  if (!absl::ConsumePrefix(&name, "model.layers.") ||
      !absl::SimpleAtoi(name.substr(0, name.find('.')), &layer)) {
    return std::nullopt;
  }
  return layer;
}

absl::Status CheckNoLayerBeyond(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  for (const std::string& name : checkpoint.tensor_names()) {
    if (LayerOf(name).value_or(0) < config.num_layers || HoldsNoWeights(name)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        checkpoint.directory().string(), ": tensor ", Quoted(name), " is of layer ", *LayerOf(name),
        ", but config.json says num_hidden_layers: ", config.num_layers));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<TensorSpec> LlamaLayerTensors(const ModelConfig& config, int64_t layer) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  const int64_t hidden = config.hidden_size;
  const int64_t query = config.num_heads * config.head_dim;
  const int64_t kv = config.num_kv_heads * config.head_dim;
  const int64_t inner = config.intermediate_size;
  std::vector<TensorSpec> specs = {
      {prefix + "input_layernorm.weight", {hidden}},
      {prefix + "self_attn.q_proj.weight", {query, hidden}},
      {prefix + "self_attn.k_proj.weight", {kv, hidden}},
      {prefix + "self_attn.v_proj.weight", {kv, hidden}},
      {prefix + "self_attn.o_proj.weight", {hidden, query}},
      {prefix + "post_attention_layernorm.weight", {hidden}},
      {prefix + "mlp.gate_proj.weight", {inner, hidden}},
      {prefix + "mlp.up_proj.weight", {inner, hidden}},
      {prefix + "mlp.down_proj.weight", {hidden, inner}},
  };
  if (config.has_qkv_bias()) {
    specs.push_back({prefix + "self_attn.q_proj.bias", {query}});
    specs.push_back({prefix + "self_attn.k_proj.bias", {kv}});
    specs.push_back({prefix + "self_attn.v_proj.bias", {kv}});
  }
  if (config.has_head_norms()) {
    specs.push_back({prefix + "self_attn.q_norm.weight", {config.head_dim}});
    specs.push_back({prefix + "self_attn.k_norm.weight", {config.head_dim}});
  }
  return specs;
}

std::vector<TensorSpec> LlamaTensors(const ModelConfig& config) {
  std::vector<TensorSpec> specs;
  specs.push_back({"model.embed_tokens.weight", {config.vocab_size, config.hidden_size}});
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (TensorSpec& spec : LlamaLayerTensors(config, layer)) specs.push_back(std::move(spec));
  }
  specs.push_back({"model.norm.weight", {config.hidden_size}});
  if (!config.tie_word_embeddings) {
    specs.push_back({"lm_head.weight", {config.vocab_size, config.hidden_size}});
  }
  return specs;
}

absl::Status CheckLlamaTensors(const Checkpoint& checkpoint) {
  for (const TensorSpec& spec : LlamaTensors(checkpoint.config())) {
    const bool is_quantized = checkpoint.config().stored.has_value() && IsMatrix(spec);
    RETURN_IF_ERROR(is_quantized ? CheckMatrix(checkpoint, spec) : CheckTensor(checkpoint, spec));
  }
  return CheckNoLayerBeyond(checkpoint);
}

std::vector<std::string> UnknownTensors(const Checkpoint& checkpoint) {
  absl::flat_hash_set<std::string> known;
  for (TensorSpec& spec : LlamaTensors(checkpoint.config())) {
    if (checkpoint.config().stored.has_value() && IsMatrix(spec)) {
      for (const char* part : {".weight_packed", ".weight_scale", ".weight_shape", ".qweight",
                               ".qzeros", ".scales", ".g_idx"}) {
        known.insert(WithoutSuffix(spec.name) + part);
      }
    }
    known.insert(std::move(spec.name));
  }
  std::vector<std::string> unknown;
  for (std::string& name : checkpoint.tensor_names()) {
    if (known.contains(name) || HoldsNoWeights(name) || IsTiedHead(checkpoint, name)) continue;
    unknown.push_back(std::move(name));
  }
  return unknown;
}

std::string UnknownTensorText(const std::string& name) {
  return absl::StrCat(Quoted(name), name == kHead ? " (the embedding, from which it differs, "
                                                    "takes its place: tie_word_embeddings: true)"
                                                  : "");
}

}  // namespace lockstep
