#include "deploy/plan/memory_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "deploy/plan/serve_memory.h"
#include "deploy/plan/stage_borders.h"
#include "deploy/plan/units.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "runtime/engine/kv_capacity.h"
#include "runtime/engine/spare_memory.h"

namespace lockstep::plan {
namespace {

// Sampling holds logits, their sorted copy, indices, probabilities and sums at once. Derived from
// the 1.26 GiB that vLLM prints for 256 sequences of a vocabulary of 128,256, with tp 1 and 2 alike
// (github.com/vllm-project/vllm pull request 10511, 2024-12-14).
constexpr int64_t kSamplingBytesPerLogit = 41;
// Gate, up and their product; hidden states: residual, normed, attention's output.
constexpr int64_t kActivationsPerToken = 3;
constexpr int64_t kActivationElementBytes = 2;
// What a process takes beside tensors: driver context and graphs, and more for a group's channels.
// Source as above: between the 0.2 GiB (pull request 12126, 2025-01-16) and the 1.8 GiB (10511) of
// two versions for one GPU; 3.6 GiB at most for a group.
// `serve` charges its budget no driver context, but its own workspaces beside this
// (serve_memory.h): what code and recorded steps take there was not measured yet.
constexpr int64_t kRuntimeBytes = int64_t{950} << 20;
constexpr int64_t kCommunicationBytes = int64_t{1250} << 20;

int64_t ActivationBytes(const MemoryInputs& inputs, const Layout& layout, bool is_last) {
  const Architecture& model = inputs.model;
  int64_t wide = model.intermediate_size;
  if (model.experts) {
    wide = std::max(wide, model.experts->per_token * model.experts->intermediate_size);
  }
  // Every expert of a token takes a copy of its hidden state.
  const int64_t copies = model.experts ? model.experts->per_token : 0;
  const int64_t per_token =
      kActivationElementBytes *
      (kActivationsPerToken * (wide / layout.tp + model.hidden_size) + copies * model.hidden_size);
  const int64_t forward = inputs.options.max_batched_tokens * per_token;
  const int64_t sampling =
      is_last ? inputs.options.max_num_seqs * model.vocab_size * kSamplingBytesPerLogit : 0;
  return std::max(forward, sampling);  // never at the same time
}

bool TakesMemoryAsServe(const MemoryInputs& inputs) {
  return inputs.options.by_serve && inputs.model.runtime_config.has_value();
}

void AddActivationsAndRuntime(const MemoryInputs& inputs, const Layout& layout,
                              StageMemory& stage) {
  stage.runtime = kRuntimeBytes;
  if (!TakesMemoryAsServe(inputs)) {
    stage.activations = ActivationBytes(inputs, layout, stage.stage == layout.pp - 1);
    return;
  }
  const ServeMemory serve = MemoryOfServe(inputs, layout, stage.stage);
  stage.activations = serve.buffers;
  stage.runtime += serve.workspaces;
}

StageMemory PlanStage(const MemoryInputs& inputs, const Layout& layout, const RankWeights& weights,
                      int first_rank) {
  StageMemory stage;
  stage.stage = weights.stage;
  stage.first_rank = first_rank;
  stage.weights = weights;
  stage.communication =
      (layout.ranks() > 1 ? kCommunicationBytes : 0) +
      HandOverMemoryBytes(layout, inputs.gpus_per_node, weights.stage,
                          inputs.options.max_batched_tokens * inputs.model.hidden_size);
  stage.capacity = inputs.gpu_bytes;
  stage.reserve = static_cast<int64_t>(static_cast<double>(inputs.gpu_bytes) *
                                       (1.0 - inputs.options.utilization));
  AddActivationsAndRuntime(inputs, layout, stage);
  if (TakesMemoryAsServe(inputs)) {
    stage.reserve += SpareBytes(std::max<int64_t>(0, stage.capacity - stage.fixed()));
  }
  stage.kv_budget = stage.capacity - stage.fixed();
  const KvShare share{inputs.model, inputs.kv, layout.tp, 0, weights.layers};
  stage.kv_bytes_per_token = KvBytesPerToken(share);
  stage.kv_blocks_held =
      engine::BlocksIn(stage.kv_budget, stage.kv_bytes_per_token, inputs.options.block_size);
  return stage;
}

int64_t RequestsHeld(const MemoryInputs& inputs, const Layout& layout, const StageMemory& stage,
                     int64_t num_tokens) {
  const KvShare share{inputs.model, inputs.kv, layout.tp, 0, stage.weights.layers};
  const int64_t bytes =
      KvBytesOfRequest(share, inputs.policy, num_tokens, inputs.options.block_size);
  return std::max<int64_t>(0, stage.kv_budget) / std::max<int64_t>(1, bytes);
}

// Requests of num_tokens that every stage holds at once.
int64_t MaxRequests(const MemoryInputs& inputs, const Layout& layout, const MemoryPlan& plan,
                    int64_t num_tokens) {
  int64_t least = INT64_MAX;
  for (const StageMemory& stage : plan.stages) {
    least = std::min(least, RequestsHeld(inputs, layout, stage, num_tokens));
  }
  return least;
}

int64_t LongestRequest(const MemoryInputs& inputs, const Layout& layout, const MemoryPlan& plan) {
  int64_t fits = 0;
  int64_t too_long = (TakesMemoryAsServe(inputs) ? inputs.model.MostServedTokens()
                                                 : inputs.model.max_position_embeddings) +
                     1;
  while (too_long - fits > 1) {
    const int64_t middle = fits + (too_long - fits) / 2;
    (MaxRequests(inputs, layout, plan, middle) >= 1 ? fits : too_long) = middle;
  }
  return fits;
}

}  // namespace

const StageMemory& MemoryPlan::fullest() const {
  LS_CHECK(!stages.empty()) << "no stages";
  return *std::min_element(
      stages.begin(), stages.end(), [](const StageMemory& a, const StageMemory& b) {
        return a.kv_blocks_held != b.kv_blocks_held ? a.kv_blocks_held < b.kv_blocks_held
                                                    : a.kv_budget < b.kv_budget;
      });
}

MemoryPlan PlanMemory(const MemoryInputs& inputs, const Layout& layout) {
  MemoryPlan plan;
  const std::vector<RankWeights> ranks = WeightsOfRanks(inputs.model, inputs.weights, layout);
  for (int stage = 0; stage < layout.pp; ++stage) {
    const auto first = ranks.begin() + stage * layout.tp;
    const auto fullest = std::max_element(
        first, first + layout.tp,
        [](const RankWeights& a, const RankWeights& b) { return a.total() < b.total(); });
    plan.stages.push_back(PlanStage(inputs, layout, *fullest, stage * layout.tp));
  }
  plan.num_kv_blocks = plan.fullest().kv_blocks_held;
  const KvShare share{inputs.model, inputs.kv, layout.tp, 0, plan.fullest().weights.layers};
  plan.bytes_per_request =
      KvBytesOfRequest(share, inputs.policy, inputs.request_tokens, inputs.options.block_size);
  plan.max_requests = MaxRequests(inputs, layout, plan, inputs.request_tokens);
  plan.max_running = MaxRequests(
      inputs, layout, plan, inputs.mean_tokens > 0 ? inputs.mean_tokens : inputs.request_tokens);
  plan.max_request_tokens = LongestRequest(inputs, layout, plan);
  return plan;
}

absl::StatusOr<HostMemory> PlanHostMemory(const HostMemoryInputs& inputs, const Layout& layout) {
  const Architecture& model = inputs.model;
  const auto held = HeldByRuntime(model, inputs.weights);
  if (!held) {
    return absl::InvalidArgumentError(
        "on CPUs models that `serve` loads are planned, in f32, bf16, int8 and int4, as it holds "
        "them");
  }
  RETURN_IF_ERROR(CheckModelLayout(model, layout));
  const auto kv = FindKvFormat(held->dtype == DType::kF32 ? "f32" : "bf16");
  HostMemory memory;
  for (const RankWeights& rank : WeightsOfRanks(model, inputs.weights, layout)) {
    memory.weight_bytes += rank.total();
  }
  for (int tp_rank = 0; tp_rank < layout.tp; ++tp_rank) {
    memory.kv_bytes_per_token +=
        KvBytesPerToken({model, *kv, layout.tp, tp_rank, {0, model.num_layers}});
  }
  memory.num_kv_blocks = engine::BlocksOf({.available_bytes = inputs.available_bytes,
                                           .weight_bytes = memory.weight_bytes,
                                           .bytes_per_token = memory.kv_bytes_per_token,
                                           .block_size = inputs.options.block_size,
                                           .max_num_seqs = inputs.options.max_num_seqs,
                                           .max_model_len = inputs.max_model_len,
                                           .num_blocks = std::nullopt,
                                           .gib = std::nullopt});
  if (memory.num_kv_blocks < 1) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("it does not fit: weights of %s leave no KV block in %s of memory",
                        BinarySize(memory.weight_bytes), BinarySize(inputs.available_bytes)));
  }
  return memory;
}

}  // namespace lockstep::plan
