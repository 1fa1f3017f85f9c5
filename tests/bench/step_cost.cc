#include "tests/bench/step_cost.h"

namespace lockstep::bench {

StepCost CostOfStep(const ModelConfig& config, const StepWork& work, int weight_bytes) {
  const double head = static_cast<double>(config.vocab_size) * config.hidden_size;
  const double embedding = config.tie_word_embeddings ? 0 : head;
  const double matrices = config.num_parameters() - embedding - head;
  const double layers = config.num_layers;
  const double kv_width = static_cast<double>(config.num_kv_heads) * config.head_dim;
  const double q_width = static_cast<double>(config.num_heads) * config.head_dim;
  const double left_early =  // of a token without logits
      static_cast<double>(config.hidden_size) *
      (q_width + 3.0 * static_cast<double>(config.intermediate_size));
  return {
      .bytes = weight_bytes * matrices + 4 * kv_width * layers * static_cast<double>(work.cached),
      .product_flops = 2 * matrices * static_cast<double>(work.num_tokens) -
                       2 * left_early * static_cast<double>(work.num_tokens - work.logits_rows),
      .attention_flops = 4 * q_width * layers * static_cast<double>(work.attended)};
}

}  // namespace lockstep::bench
