#include "deploy/plan/roofline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "deploy/plan/stage_borders.h"
#include "deploy/plan/units.h"

namespace lockstep::plan {
namespace {

// Neither limit is met sharply: near the ridge both are felt. (The fourth root of the sum of fourth
// powers; by std::pow it was a fifth of all that the planner computes.)
double SmoothMax(double a, double b) {
  const double a2 = a * a;
  const double b2 = b * b;
  return std::sqrt(std::sqrt(a2 * a2 + b2 * b2));
}

bool LayersAreAlike(const Architecture& model) {
  return std::all_of(model.window_of_layer.begin(), model.window_of_layer.end(),
                     [&](int64_t window) { return window == model.window_of_layer.front(); });
}

std::map<int64_t, double> WindowsOf(const Architecture& model, const Range& layers) {
  std::map<int64_t, double> windows;
  for (int64_t layer = layers.begin; layer < layers.end; ++layer) {
    windows[model.window_of_layer[layer]] += 1.0 / static_cast<double>(layers.size());
  }
  return windows;
}

// The mean of min(position, window) over a chunk of a prompt.
double MeanAttendedInWindow(double start, double length, double window) {
  if (window <= start) return window;
  const double growing = std::min(length, window - start);
  return (growing * (start + growing / 2.0) + (length - growing) * window) / length;
}

// Of the rate that the hardware has for these operands.
double ShareReached(const EngineProfile& engine, Operands operands) {
  switch (operands) {
    case Operands::k32Bits:
    case Operands::k16Bits:
      return engine.flops_16;
    case Operands::kFp8:
    case Operands::kInt8:
      return engine.flops_8;
    case Operands::kFp4:
      return engine.flops_4;
  }
  return engine.flops_16;
}

double RateOf(const Gpu& gpu, const EngineProfile& engine, Operands operands) {
  // What the hardware lacks is computed in 16 bits.
  if (!gpu.Multiplies(operands)) operands = Operands::k16Bits;
  return gpu.FlopsOf(operands) * ShareReached(engine, operands);
}

// Of attention and the LM head, which stay in 16 bits beside narrower weights.
Operands DenseOperands(const WeightFormat& weights) {
  return weights.operands == Operands::k32Bits ? Operands::k32Bits : Operands::k16Bits;
}

}  // namespace

const char* StepCost::largest() const {
  const std::array<std::pair<double, const char*>, 8> parts = {
      {{linear, "reading weights"},
       {lm_head, "the LM head"},
       {kv_read, "reading the KV cache"},
       {prefill_attention, "attention over prompts"},
       {activations, "activations"},
       {communication, "all-reduces"},
       {overhead, "the engine's overheads"},
       {launch_floor, "kernel launches"}}};
  return std::max_element(parts.begin(), parts.end())->second;
}

Roofline::Roofline(const Deployment& deployment)
    : Roofline(deployment, WorkOfStages(deployment.model, deployment.weights, deployment.layout),
               InterconnectOf(deployment.gpu, deployment.gpus_per_node, deployment.engine.links)) {}

Roofline::Roofline(const Deployment& deployment, std::vector<StageWork> stages, Interconnect net)
    : deployment_(deployment),
      net_(std::move(net)),
      stages_(std::move(stages)),
      most_whole_bytes_(MostWholeBytesOfBorders(deployment.layout, net_.gpus_per_node)),
      linear_flops_(RateOf(deployment.gpu, deployment.engine, deployment.weights.operands)),
      dense_flops_(RateOf(deployment.gpu, deployment.engine, DenseOperands(deployment.weights))),
      weight_rate_(deployment.gpu.bandwidth_gb_s * kGiga * deployment.engine.weight_bandwidth),
      kv_rate_(deployment.gpu.bandwidth_gb_s * kGiga * deployment.engine.kv_bandwidth),
      layers_are_alike_(LayersAreAlike(deployment.model)) {
  const auto is_alike = [&](const Kind& kind, const StageWork& work) {
    const StageWork& other = stages_[kind.stage];
    return other.linear_bytes == work.linear_bytes && other.expert_bytes == work.expert_bytes &&
           other.lm_head_bytes == work.lm_head_bytes && other.layers.size() == work.layers.size() &&
           layers_are_alike_;
  };
  for (const StageWork& work : stages_) {
    windows_.push_back(WindowsOf(deployment.model, work.layers));
    if (!kinds_.empty() && is_alike(kinds_.back(), work)) {
      ++kinds_.back().count;
    } else {
      kinds_.push_back({work.stage, 1});
    }
  }
}

double Roofline::KvBytesOfDecode(const StageWork& work, double context) const {
  KvShare share{deployment_.model, deployment_.kv, deployment_.layout.tp, 0, work.layers};
  const int64_t tokens = std::llround(context);
  if (!layers_are_alike_) {
    return static_cast<double>(KvBytesReadPerStep(share, deployment_.policy, tokens));
  }
  share.layers = {0, 1};
  return work.num_layers *
         static_cast<double>(KvBytesReadPerStep(share, deployment_.policy, tokens));
}

double Roofline::MeanAttended(const StageWork& work, const StepLoad& load) const {
  const double length = load.prefill_tokens / load.prompts;
  double mean = 0;
  for (const auto& [window, share] : windows_[work.stage]) {
    mean += share * (window == 0 ? load.prefill_start + length / 2.0
                                 : MeanAttendedInWindow(load.prefill_start, length,
                                                        static_cast<double>(window)));
  }
  return mean;
}

// Every head reads the same latents: what other caches lack, work per byte, they have.
double Roofline::FlopsPerKvByte(const StageWork& work) const {
  if (work.latent_decode_flops == 0) return 0.0;
  const KvShare share{deployment_.model, deployment_.kv, deployment_.layout.tp, 0, work.layers};
  return work.latent_decode_flops / static_cast<double>(KvBytesPerTokenOfLayer(share));
}

double Roofline::LayersOverhead(const StageWork& work) const {
  const EngineProfile& engine = deployment_.engine;
  const double latent_layers = deployment_.model.latent ? work.num_layers : 0.0;
  return (work.num_layers * engine.layer_us + work.moe_layers * engine.moe_layer_us +
          latent_layers * engine.latent_layer_us) *
         kMicro;
}

double Roofline::LaunchFloor(const StageWork& work) const {
  const EngineProfile& engine = deployment_.engine;
  return (work.num_layers * engine.prefill_layer_us +
          work.moe_layers * engine.moe_prefill_layer_us) *
         kMicro;
}

StepCost Roofline::CostOf(int stage, const StepLoad& load) const {
  const StageWork& work = stages_[stage];
  const EngineProfile& engine = deployment_.engine;
  const double tokens = load.prefill_tokens + load.decodes;
  const double sampled = load.decodes + (load.prefill_tokens > 0 ? load.prompts : 0.0);
  // That leave the last layer early.
  const double left = engine.leaves_tokens_without_logits ? std::max(0.0, tokens - sampled) : 0.0;
  const double flops = tokens * work.linear_flops - left * work.logits_only.flops;
  const double wide_flops = tokens * work.wide_flops - left * work.logits_only.wide_flops;
  StepCost cost;
  cost.linear =
      SmoothMax(work.linear_bytes / weight_rate_,
                (flops - wide_flops) / linear_flops_ + wide_flops / dense_flops_) +
      SmoothMax(ExpertBytesRead(work, std::pow(tokens, engine.routing_spread)) / weight_rate_,
                tokens * work.expert_flops / linear_flops_);
  cost.lm_head =
      SmoothMax(work.lm_head_bytes / weight_rate_, sampled * work.lm_head_flops / dense_flops_);
  cost.kv_read =
      load.decodes * KvBytesOfDecode(work, load.decode_context) *
      SmoothMax(1.0 / kv_rate_, FlopsPerKvByte(work) / (dense_flops_ * engine.attention_share));
  if (load.prefill_tokens > 0) {
    cost.prefill_attention = load.prefill_tokens * MeanAttended(work, load) * work.attention_flops /
                             (dense_flops_ * engine.attention_share);
  }
  cost.activations = tokens * work.activation_bytes / kv_rate_;
  const auto all_reduce = [&](double of_tokens) {
    return AllReduceSeconds(net_, deployment_.layout.tp,
                            of_tokens * work.hidden_size * engine.hidden_state_bytes);
  };
  cost.communication = (work.all_reduces - work.logits_only.all_reduces) * all_reduce(tokens) +
                       work.logits_only.all_reduces * all_reduce(tokens - left);
  cost.overhead = LayersOverhead(work);
  if (load.prefill_tokens > 0) {
    const double floor = LaunchFloor(work);
    cost.launch_floor = SmoothMax(cost.total(), floor) - cost.total();
  }
  cost.overhead += (engine.step_us + load.decodes * engine.sequence_us) * kMicro;
  return cost;
}

StepCost Roofline::SlowestStage(const StepLoad& load) const {
  StepCost slowest;
  for (const Kind& kind : kinds_) {
    const StepCost cost = CostOf(kind.stage, load);
    if (cost.total() > slowest.total()) slowest = cost;
  }
  return slowest;
}

double Roofline::SecondsToNextStage(int stage, const StepLoad& load) const {
  if (stage + 1 == num_stages()) return 0.0;
  const double bytes = (load.prefill_tokens + load.decodes) * stages_.front().hidden_size *
                       deployment_.engine.hidden_state_bytes;
  return HandOverSeconds(net_, deployment_.layout.tp, most_whole_bytes_[stage], bytes);
}

double Roofline::StageSeconds(int stage, const StepLoad& load) const {
  return CostOf(stage, load).total() + SecondsToNextStage(stage, load);
}

double Roofline::SumOfStages(const StepLoad& load) const {
  double total = 0.0;
  for (const Kind& kind : kinds_) total += kind.count * CostOf(kind.stage, load).total();
  for (int stage = 0; stage < num_stages(); ++stage) total += SecondsToNextStage(stage, load);
  return total;
}

}  // namespace lockstep::plan
