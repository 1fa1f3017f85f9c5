#include "deploy/plan/architecture.h"

#include <algorithm>

namespace lockstep::plan {
namespace {

void AddLatentAttention(const Architecture& model, const LatentAttention& latent,
                        LayerParameters& out) {
  const int64_t q_head = latent.qk_nope_head_dim + latent.qk_rope_head_dim;
  const int64_t kv_down = latent.kv_lora_rank + latent.qk_rope_head_dim;
  const int64_t kv_up =
      latent.kv_lora_rank * model.num_heads * (latent.qk_nope_head_dim + latent.v_head_dim);
  const int64_t output = model.num_heads * latent.v_head_dim * model.hidden_size;
  const int64_t q_in = latent.q_lora_rank > 0 ? latent.q_lora_rank : model.hidden_size;
  out.attention_sharded = q_in * model.num_heads * q_head + kv_up + output;
  out.attention_replicated = model.hidden_size * (latent.q_lora_rank + kv_down);
  out.norms_and_biases += latent.q_lora_rank + latent.kv_lora_rank;
}

void AddHeadAttention(const Architecture& model, LayerParameters& out) {
  out.attention_sharded = 2 * model.num_heads * model.head_dim * model.hidden_size;
  out.kv_projection = 2 * model.head_dim * model.hidden_size;
  if (model.qkv_bias) {
    out.attention_sharded += model.num_heads * model.head_dim;
    out.kv_projection += 2 * model.head_dim;
  }
  if (model.qk_norm) out.norms_and_biases += 2 * model.head_dim;
}

}  // namespace

LayerParameters ParametersOfLayer(const Architecture& model, int64_t layer) {
  LayerParameters out;
  out.norms_and_biases = 2 * model.hidden_size;
  if (model.latent) {
    AddLatentAttention(model, *model.latent, out);
  } else {
    AddHeadAttention(model, out);
  }
  if (!model.IsMoeLayer(layer)) {
    out.mlp_sharded = 3 * model.hidden_size * model.intermediate_size;
    return out;
  }
  const Experts& experts = *model.experts;
  const int64_t one = 3 * model.hidden_size * experts.intermediate_size;
  out.mlp_sharded = 3 * model.hidden_size * experts.shared_intermediate_size;
  out.experts = experts.num_experts * one;
  out.active_experts = experts.per_token * one;
  out.router = model.hidden_size * experts.num_experts;
  return out;
}

ShardedSizes Architecture::sharded_sizes() const {
  ShardedSizes sizes;
  sizes.num_layers = num_layers;
  sizes.num_heads = num_heads;
  sizes.num_kv_heads = num_kv_heads;
  sizes.intermediate_size = intermediate_size;
  sizes.vocab_size = vocab_size;
  sizes.hidden_size = hidden_size;
  if (experts) {
    // What one token is multiplied with: the stages are balanced by it.
    sizes.intermediate_size =
        experts->per_token * experts->intermediate_size + experts->shared_intermediate_size;
  }
  return sizes;
}

namespace {

int64_t CountParameters(const Architecture& model, bool active) {
  int64_t total = model.hidden_size;  // final norm
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const LayerParameters part = ParametersOfLayer(model, layer);
    total += part.attention_sharded + part.attention_replicated + part.mlp_sharded + part.router +
             part.norms_and_biases + model.num_kv_heads * part.kv_projection +
             (active ? part.active_experts : part.experts);
  }
  const int64_t table = model.vocab_size * model.hidden_size;
  return total + (active || model.tie_word_embeddings ? table : 2 * table);
}

}  // namespace

int64_t Architecture::num_parameters() const { return CountParameters(*this, false); }
int64_t Architecture::num_active_parameters() const { return CountParameters(*this, true); }

}  // namespace lockstep::plan
