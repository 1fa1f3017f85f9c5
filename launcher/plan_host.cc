// lockstep plan for the CPUs of this host: --gpu cpu.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "deploy/plan/host_plan.h"
#include "kernels/base/available_memory.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/text_file.h"
#include "launcher/cli/command.h"
#include "launcher/cli/serving_flags.h"
#include "launcher/plan_options.h"

namespace lockstep {
namespace {

// A usual request is a smaller one than on GPUs, as far as the context allows.
absl::Status FillHostLoad(const PlanOptions& options, plan::PlanRequest& what,
                          plan::HostPlanRequest& request) {
  const int64_t positions = what.model.architecture.MostServedTokens();
  const auto most = static_cast<double>(options.context.value_or(positions));
  what.input_tokens = std::min(512.0, std::floor(most / 2));
  what.output_tokens = std::min(128.0, std::floor(most / 4));
  what.concurrency = 1;
  RETURN_IF_ERROR(FillPlannedLoad(options, what));
  RETURN_IF_ERROR(CheckRequest(what));
  const double longest =
      std::max(static_cast<double>(what.context), what.input_tokens + what.output_tokens);
  if (longest > static_cast<double>(positions)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a context of ", longest, " tokens exceeds the ", positions,
                     " to which `serve` keeps this model's, as its sliding window sees no more"));
  }
  request.max_model_len = options.context ? what.context : positions;
  request.needs_max_model_len = options.context.has_value();
  request.concurrency = what.concurrency;
  request.arrivals = {what.trace, what.rate_per_s, what.input_tokens, what.output_tokens};
  request.ttft_p95_ms = what.ttft_p95_ms;
  request.tpot_p95_ms = what.tpot_p95_ms;
  return absl::OkStatus();
}

// Flags that would have no effect.
absl::Status CheckHostFlags(const PlanOptions& options) {
  const std::pair<const char*, bool> flags[] = {
      {"--nodes", options.nodes.has_value()},
      {"--gpus-per-node", options.gpus_per_node.has_value()},
      {"--price", !options.price.empty()},
      {"--engine", !options.engine.empty()},
      {"--svg", !options.svg.empty()},
      {"--html", !options.html.empty()},
      {"--expert-parallel", options.expert_parallel},
      {"--kv", !options.kv.empty()},
      {"--kv-budget", options.kv_budget != PlanOptions().kv_budget},
      {"--kv-read", options.kv_read != PlanOptions().kv_read},
      {"--layers-per-kv", options.layers_per_kv != PlanOptions().layers_per_kv},
      {"--utilization", options.utilization != PlanOptions().utilization}};
  for (const auto& [flag, is_given] : flags) {
    if (is_given) return absl::InvalidArgumentError(absl::StrCat(flag, " is not for --gpu cpu"));
  }
  return absl::OkStatus();
}

// Ranks as processes of this host, as `serve` starts them without GPUs.
absl::StatusOr<plan::HostPlan> ComputeHostPlan(const PlanOptions& options) {
  RETURN_IF_ERROR(CheckHostFlags(options));
  plan::PlanRequest what;
  RETURN_IF_ERROR(FillPlannedModel(options, what));
  plan::HostPlanRequest request;
  RETURN_IF_ERROR(FillHostLoad(options, what, request));
  request.model = std::move(what.model);
  request.weights = what.weights;
  request.memory.block_size = options.block_size;
  request.memory.max_batched_tokens = ModelFlags().max_batched_tokens;
  request.memory.max_num_seqs = ModelFlags().max_num_seqs;
  request.available_bytes = AvailableMemoryBytes();
  ASSIGN_OR_RETURN(request.profile, FindPlanProfile(options, "cpu"));
  request.cores = ThreadsPerRank({}, 1);
  request.tp = options.tp.value_or(0);
  request.pp = options.pp.value_or(0);
  return plan::MakeHostPlan(request);
}

}  // namespace

absl::Status FillPlannedModel(const PlanOptions& options, plan::PlanRequest& request) {
  ASSIGN_OR_RETURN(request.model, plan::LoadModel(options.model));
  plan::Architecture& model = request.model.architecture;
  std::string weights = options.weights;
  if (weights.empty()) weights = model.stored_weights;
  if (weights.empty()) weights = model.dtype == DType::kF32 ? "f32" : "bf16";
  ASSIGN_OR_RETURN(request.weights, plan::FindWeightFormat(weights));
  ASSIGN_OR_RETURN(request.kv, plan::FindKvFormat(!options.kv.empty() ? options.kv
                                                  : weights == "f32"  ? "f32"
                                                                      : "bf16"));
  model.layers_per_kv = options.layers_per_kv;
  request.policy = {options.kv_budget, options.kv_read};
  return absl::OkStatus();
}

absl::Status WritePlanFile(const std::string& path, const std::string& text) {
  return path.empty() ? absl::OkStatus() : WriteTextFile(path, text);
}

int RunHostPlan(const PlanOptions& options) {
  const auto plan = ComputeHostPlan(options);
  if (absl::IsResourceExhausted(plan.status())) return Fail("plan", plan.status());
  if (!plan.ok()) return FailUsage("plan", std::string(plan.status().message()));
  std::printf("%s", (options.json ? HostPlanJson(*plan) : HostPlanText(*plan)).c_str());
  const bool has_limits = !options.rate.empty() || !options.trace.empty() ||
                          !options.ttft_p95.empty() || !options.tpot_p95.empty();
  const bool holds =
      plan->answer().broken.empty() && (plan->answer().prediction.has_value() || !has_limits);
  return holds ? kExitOk : kExitFailure;
}

}  // namespace lockstep
