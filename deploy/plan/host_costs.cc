#include "deploy/plan/host_costs.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "deploy/plan/units.h"
#include "kernels/base/status_macros.h"

namespace lockstep::plan {
namespace {

constexpr double kHiddenElementBytes = 4.0;  // of an element: f32

absl::StatusOr<FormatSpeed> FormatOf(const RankSpeed& speed, const std::string& weights,
                                     const HostProfile& profile) {
  for (const FormatSpeed& format : speed.formats) {
    if (format.weights == weights) return format;
  }
  return absl::NotFoundError(
      absl::StrCat("speed of ", weights, " weights is not among what was ", profile.source()));
}

bool HoldsFp8(const HeldWeights& held) {
  return held.keeps_float8 || held.quantization == Quantization::kFp8;
}

// What is measured for layers: a byte takes as long in checkpoints of which a part is in fp8.
std::string LayersFormat(const HeldWeights& held, const std::string& name) {
  return HoldsFp8(held) ? "fp8" : name;
}

// The LM head of models in integers is in 8 bits, that of fp8 models as it is stored.
std::string HeadFormat(const HeldWeights& held, const std::string& layers) {
  if (HoldsFp8(held)) return held.dtype == DType::kF32 ? "f32" : "bf16";
  return held.quantization == Quantization::kNone ? layers : "int8";
}

bool HasFp8(const HostProfile& profile) {
  return !profile.speeds.empty() && FormatOf(profile.speeds.front(), "fp8", profile).ok();
}

std::optional<HeldWeights> HeldOn(const HostDeployment& deployment) {
  const HostProfile& profile = deployment.profile;
  if (!profile.device.is_gpu()) return HeldByRuntime(deployment.model, deployment.weights);
  auto held = HeldOnGpus(deployment.model, deployment.weights, /*multiply_fp8=*/true);
  if (held && HoldsFp8(*held)) held->dtype = deployment.model.dtype;  // unless `--dtype` is given
  if (held || HasFp8(profile)) return held;
  return HeldOnGpus(deployment.model, deployment.weights, /*multiply_fp8=*/false);
}

}  // namespace

absl::StatusOr<HostCosts> HostCosts::Create(const HostDeployment& deployment) {
  const Architecture& model = deployment.model;
  const auto held = HeldOn(deployment);
  if (!held) {
    return absl::InvalidArgumentError(
        absl::StrCat("the runtime holds no ", deployment.weights.name, " weights of this model",
                     deployment.profile.device.is_gpu() ? " on GPUs" : ""));
  }
  HostCosts costs;
  const Layout& layout = deployment.layout;
  costs.tp_ = layout.tp;
  costs.step_us_ = deployment.profile.step_us;
  costs.sequence_us_ = deployment.profile.sequence_us;
  costs.stages_ = WorkOfStages(model, deployment.weights, layout);
  const auto ranks = WeightsOfRanks(model, deployment.weights, layout);
  const std::string head_format = HeadFormat(*held, deployment.weights.name);
  if (head_format == "int8") {
    costs.stages_.back().lm_head_bytes =
        static_cast<double>(ranks[static_cast<size_t>(layout.tp) * (layout.pp - 1)].lm_head_bytes);
  }
  ASSIGN_OR_RETURN(const KvFormat kv, FindKvFormat(held->dtype == DType::kF32 ? "f32" : "bf16"));
  for (const StageWork& work : costs.stages_) {
    costs.kv_bytes_per_token_.push_back(
        static_cast<double>(KvBytesPerToken({model, kv, layout.tp, 0, work.layers})));
  }
  for (int active = 1; active <= layout.pp; ++active) {
    Speed speed;
    speed.rank = deployment.profile.SpeedOf(layout.tp, active, deployment.threads_per_rank);
    if ((layout.tp > 1 && speed.rank.all_reduce_gb_s <= 0) ||
        (active > 1 && speed.rank.send_gb_s <= 0)) {
      return absl::NotFoundError(absl::StrCat("speed of several ranks is not among what was ",
                                              deployment.profile.source()));
    }
    ASSIGN_OR_RETURN(
        speed.layers,
        FormatOf(speed.rank, LayersFormat(*held, deployment.weights.name), deployment.profile));
    ASSIGN_OR_RETURN(speed.head, FormatOf(speed.rank, head_format, deployment.profile));
    costs.speeds_.push_back(std::move(speed));
  }
  return costs;
}

int HostCosts::ActiveStages(const StepLoad& load) const {
  return load.active_stages > 0 ? std::min(load.active_stages, num_stages()) : num_stages();
}

StepCost HostCosts::CostOf(int stage, const StepLoad& load) const {
  const StageWork& work = stages_[static_cast<size_t>(stage)];
  const Speed& speed = speeds_[static_cast<size_t>(ActiveStages(load)) - 1];
  const double tokens = load.prefill_tokens + load.decodes;
  const double sampled = load.decodes + (load.prefill_tokens > 0 ? load.prompts : 0.0);
  StepCost cost;
  const StageWork::LogitsOnly& logits_only = work.logits_only;
  cost.linear = LinearSeconds(speed.layers, work.linear_bytes - logits_only.bytes, tokens) +
                LinearSeconds(speed.layers, logits_only.bytes, sampled);
  cost.lm_head = LinearSeconds(speed.head, work.lm_head_bytes, sampled);
  cost.kv_read = load.decodes * load.decode_context *
                 kv_bytes_per_token_[static_cast<size_t>(stage)] / (speed.layers.kv_gb_s * kGiga);
  cost.prefill_attention = load.prefill_tokens *
                           (load.prefill_start + load.prefill_tokens / load.prompts / 2.0) *
                           work.attention_flops / (speed.layers.attention_gflop_s * kGiga);
  if (tp_ > 1) {
    const auto all_reduce = [&](double of_tokens) {
      return AllReduceSecondsBeyondLayer(speed.rank,
                                         of_tokens * work.hidden_size * kHiddenElementBytes);
    };
    cost.communication = (work.all_reduces - logits_only.all_reduces) * all_reduce(tokens) +
                         logits_only.all_reduces * all_reduce(sampled);
  }
  cost.overhead = work.num_layers * speed.rank.layer_us * kMicro;
  if (stage == num_stages() - 1) cost.overhead += (step_us_ + sampled * sequence_us_) * kMicro;
  return cost;
}

StepCost HostCosts::SlowestStage(const StepLoad& load) const {
  StepCost slowest;
  for (int stage = 0; stage < num_stages(); ++stage) {
    const StepCost cost = CostOf(stage, load);
    if (cost.total() > slowest.total()) slowest = cost;
  }
  return slowest;
}

// From the last stage tokens return to the first.
double HostCosts::SecondsToNextStage(int stage, const StepLoad& load) const {
  if (num_stages() == 1) return 0.0;
  // Links are measured between two groups or more.
  const RankSpeed& speed = speeds_.back().rank;
  const double bytes =
      (load.prefill_tokens + load.decodes) * stages_.front().hidden_size * kHiddenElementBytes;
  const double sent = stage + 1 == num_stages() ? 0.0 : bytes / (speed.send_gb_s * kGiga);
  // In a full pipeline nobody sleeps for long.
  return sent + (ActiveStages(load) < num_stages() ? speed.send_us * kMicro : 0.0);
}

// Stages at work begin together, as in a full pipeline; whoever is done leaves the memory to the
// others, which are faster from then on.
double HostCosts::StageSeconds(int stage, const StepLoad& load) const {
  const double transfer = SecondsToNextStage(stage, load);
  if (ActiveStages(load) < num_stages()) return CostOf(stage, load).total() + transfer;
  std::vector<double> left(stages_.size(), 1.0);  // of each stage's work
  double now = 0.0;
  StepLoad at_work = load;
  for (at_work.active_stages = num_stages(); at_work.active_stages > 0; --at_work.active_stages) {
    std::vector<double> seconds(stages_.size());
    int first = -1;
    for (int other = 0; other < num_stages(); ++other) {
      if (left[other] <= 0) continue;
      seconds[other] = CostOf(other, at_work).total();
      if (first < 0 || left[other] * seconds[other] < left[first] * seconds[first]) first = other;
    }
    const double passed = left[first] * seconds[first];
    now += passed;
    for (int other = 0; other < num_stages(); ++other) {
      if (left[other] > 0) left[other] -= passed / seconds[other];
    }
    left[first] = 0.0;
    if (left[stage] <= 0) break;
  }
  return now + transfer;
}

double HostCosts::SumOfStages(const StepLoad& load) const {
  double total = 0.0;
  for (int stage = 0; stage < num_stages(); ++stage) {
    total += CostOf(stage, load).total() + SecondsToNextStage(stage, load);
  }
  return total;
}

}  // namespace lockstep::plan
