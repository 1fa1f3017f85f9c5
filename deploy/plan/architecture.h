// What memory and speed of a transformer depend on: a superset of ModelConfig that also knows
// mixtures of experts, latent attention, sliding windows and layers that share KV. Pure; any
// thread.
//
// Sources: the modeling files of Hugging Face transformers (llama, mistral, mixtral, qwen2, qwen3,
// qwen3_moe, deepseek_v2, deepseek_v3).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/model_config.h"
#include "parallel/partition.h"

namespace lockstep::plan {

// Multi-head latent attention (DeepSeek-V2, section 2.1): a token's cache is one latent vector and
// one rotary key for all heads.
struct LatentAttention {
  int64_t kv_lora_rank = 0;
  int64_t q_lora_rank = 0;  // 0: queries are projected directly
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;
};

struct Experts {
  int64_t num_experts = 0;
  int64_t per_token = 0;
  int64_t intermediate_size = 0;         // of one expert
  int64_t shared_intermediate_size = 0;  // of the experts that every token passes, together
  int64_t first_layer = 0;               // layers before it are dense
};

struct Architecture {
  std::string model_type;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;  // of dense layers
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool qk_norm = false;
  std::optional<LatentAttention> latent;
  std::optional<Experts> experts;
  std::vector<int64_t> window_of_layer;  // [num_layers], tokens; 0: full attention
  int64_t layers_per_kv = 1;             // consecutive layers that share one KV cache
  DType dtype = DType::kBF16;            // of the checkpoint
  std::string stored_weights;            // a weight format's name when the checkpoint is quantized
  // The same as the runtime reads it, for models that it serves; for others, why not. It has the
  // same sizes, but no more positions than the sliding window of a layer.
  std::optional<ModelConfig> runtime_config;
  std::string runtime_refusal;

  // Of a context in `serve`, where that loads the model.
  int64_t MostServedTokens() const {
    return runtime_config ? runtime_config->max_position_embeddings : max_position_embeddings;
  }
  bool IsMoeLayer(int64_t layer) const { return experts && layer >= experts->first_layer; }
  // For parallel/partition.h. The intermediate size is the smallest that tensor parallelism must
  // divide.
  ShardedSizes sharded_sizes() const;
  int64_t num_parameters() const;
  // Those that one token is multiplied with; the embedding is looked up, not multiplied.
  int64_t num_active_parameters() const;
};

// Reads a Hugging Face config.json. INVALID_ARGUMENT naming the field, its value and what is
// supported.
absl::StatusOr<Architecture> ParseArchitecture(std::string_view config_json);

// Parameters of one layer by how a layout shares them out.
struct LayerParameters {
  int64_t attention_sharded = 0;     // divided by tp
  int64_t kv_projection = 0;         // of one KV head; a rank holds those of its heads
  int64_t attention_replicated = 0;  // latent projections: on every tp rank
  int64_t mlp_sharded = 0;           // dense MLP and shared experts
  int64_t experts = 0;               // all of them, divided by tp or by expert parallelism
  int64_t active_experts = 0;        // of one token
  int64_t router = 0;
  int64_t norms_and_biases = 0;  // on every tp rank
};
LayerParameters ParametersOfLayer(const Architecture& architecture, int64_t layer);

}  // namespace lockstep::plan
