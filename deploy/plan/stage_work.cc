#include "deploy/plan/stage_work.h"

#include <cmath>

namespace lockstep::plan {
namespace {

constexpr double kActivationBytes = 2.0;  // bf16
// Passes over memory between the matrix products: norms, residuals, rotation (hidden_size each);
// gate, up, product and its reading (intermediate_size each).
constexpr double kHiddenPasses = 8.0;
constexpr double kIntermediatePasses = 4.0;
// Hidden states of every expert of a token: gathered by expert, and summed up again.
constexpr double kDispatchPasses = 4.0;

double QueryWidth(const Architecture& model) {
  return static_cast<double>(model.latent
                                 ? model.latent->qk_nope_head_dim + model.latent->qk_rope_head_dim
                                 : model.head_dim);
}

double ValueWidth(const Architecture& model) {
  return static_cast<double>(model.latent ? model.latent->v_head_dim : model.head_dim);
}

double IntermediateOfToken(const Architecture& model, int64_t layer) {
  if (!model.IsMoeLayer(layer)) return static_cast<double>(model.intermediate_size);
  return static_cast<double>(model.experts->per_token * model.experts->intermediate_size +
                             model.experts->shared_intermediate_size);
}

// Of these numbers of weights those that are held as the LM head is.
double WideOf(const WeightFormat& format, const LayerFormat& bytes, double attention, double mlp) {
  return (bytes.attention == format.base_bytes ? attention : 0.0) +
         (bytes.mlp == format.base_bytes ? mlp : 0.0);
}

void AddLayer(const Architecture& model, const WeightFormat& format, const Layout& layout,
              int64_t layer, StageWork& work) {
  const double tp = layout.tp;
  const double hidden = static_cast<double>(model.hidden_size);
  const LayerParameters part = ParametersOfLayer(model, layer);
  const double kv_heads =
      static_cast<double>(model.latent ? 0 : KvHeadsOf(model.sharded_sizes(), layout.tp, 0).size());
  const double attention = static_cast<double>(part.attention_sharded) / tp +
                           kv_heads * static_cast<double>(part.kv_projection) +
                           static_cast<double>(part.attention_replicated);
  const double mlp = static_cast<double>(part.mlp_sharded) / tp;
  const auto router = static_cast<double>(part.router);
  const LayerFormat bytes = FormatOfLayer(model, format, layer);
  work.linear_flops += 2.0 * (attention + mlp + router);
  work.wide_flops += 2.0 * (WideOf(format, bytes, attention, mlp) + router);
  work.expert_flops += 2.0 * static_cast<double>(part.active_experts) / tp;
  work.attention_flops +=
      2.0 * static_cast<double>(model.num_heads) / tp * (QueryWidth(model) + ValueWidth(model));
  work.activation_bytes +=
      kActivationBytes *
      (kHiddenPasses * hidden + kIntermediatePasses * IntermediateOfToken(model, layer) / tp);
  if (!model.IsMoeLayer(layer)) return;
  work.moe_layers += 1.0;
  const double copies = static_cast<double>(model.experts->per_token);
  work.activation_bytes +=
      kActivationBytes * kDispatchPasses * hidden * copies / (layout.expert_parallel ? tp : 1.0);
}

StageWork::LogitsOnly LogitsOnlyOf(const Architecture& model, const WeightFormat& format,
                                   const Layout& layout, const StageWork& work) {
  const int64_t last = model.num_layers - 1;
  if (model.latent || model.IsMoeLayer(last)) return {};
  const double output =
      static_cast<double>(model.num_heads * model.head_dim * model.hidden_size) / layout.tp;
  const double mlp = static_cast<double>(ParametersOfLayer(model, last).mlp_sharded) / layout.tp;
  const double flops = 2.0 * (output + mlp);
  return {.bytes = work.linear_bytes * flops / work.linear_flops,
          .flops = flops,
          .wide_flops = 2.0 * WideOf(format, FormatOfLayer(model, format, last), output, mlp),
          .all_reduces = layout.tp > 1 ? 2.0 : 0.0};
}

}  // namespace

std::vector<StageWork> WorkOfStages(const Architecture& model, const WeightFormat& format,
                                    const Layout& layout) {
  const std::vector<RankWeights> ranks = WeightsOfRanks(model, format, layout);
  std::vector<StageWork> stages;
  for (int stage = 0; stage < layout.pp; ++stage) {
    const RankWeights& weights = ranks[static_cast<size_t>(stage) * layout.tp];
    StageWork& work = stages.emplace_back();
    work.stage = stage;
    work.layers = weights.layers;
    work.num_layers = static_cast<double>(weights.layers.size());
    work.linear_bytes = static_cast<double>(weights.layer_bytes);
    work.expert_bytes = static_cast<double>(weights.expert_bytes);
    if (model.experts) {
      work.expert_share = static_cast<double>(model.experts->per_token) /
                          static_cast<double>(model.experts->num_experts);
    }
    for (int64_t layer = weights.layers.begin; layer < weights.layers.end; ++layer) {
      AddLayer(model, format, layout, layer, work);
    }
    if (model.latent) {
      work.latent_decode_flops =
          2.0 * static_cast<double>(model.num_heads) / layout.tp *
          static_cast<double>(2 * model.latent->kv_lora_rank + model.latent->qk_rope_head_dim);
    }
    work.hidden_size = static_cast<double>(model.hidden_size);
    work.all_reduces = layout.tp > 1 ? 2.0 * work.num_layers : 0.0;
    if (stage == layout.pp - 1) {
      work.logits_only = LogitsOnlyOf(model, format, layout, work);
      const auto rows = static_cast<double>(VocabOf(model.sharded_sizes(), layout.tp, 0).size());
      work.lm_head_bytes = rows * static_cast<double>(model.hidden_size) * format.base_bytes;
      work.lm_head_flops = 2.0 * rows * static_cast<double>(model.hidden_size);
    }
  }
  return stages;
}

double ExpertBytesRead(const StageWork& work, double num_tokens) {
  return work.expert_bytes * (1.0 - std::pow(1.0 - work.expert_share, num_tokens));
}

}  // namespace lockstep::plan
