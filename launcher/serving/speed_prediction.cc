#include "launcher/serving/speed_prediction.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "deploy/plan/catalog.h"
#include "deploy/plan/host_plan.h"
#include "kernels/base/status_macros.h"

namespace lockstep {
namespace {

// What a prediction needs, held for as long as the server runs.
struct Known {
  plan::Model model;
  plan::WeightFormat weights;
  plan::HostProfile profile;
  PredictedLaunch launch;

  plan::HostDeployment deployment() const {
    return {model.architecture,
            weights,
            profile,
            {.tp = launch.model.tp, .pp = launch.model.pp},
            launch.threads_per_rank};
  }
};

std::string FormatOf(const plan::Architecture& model, const PredictedLaunch& launch) {
  if (launch.model.quantize != "none") return launch.model.quantize;
  if (launch.dtype != "auto") return launch.dtype;
  if (!model.stored_weights.empty()) return model.stored_weights;
  return model.dtype == DType::kBF16 ? "bf16" : "f32";
}

absl::StatusOr<plan::Prediction> Predict(const Known& known, const ServedLoad& served) {
  plan::Load load;
  load.input_tokens = std::max(1.0, served.mean_prompt_tokens);
  load.output_tokens = std::max(1.0, served.mean_output_tokens);
  load.concurrency = std::max(1.0, served.mean_requests / known.launch.num_replicas);
  plan::HostLimits limits;
  limits.max_batched_tokens = known.launch.model.max_batched_tokens;
  limits.max_num_seqs = known.launch.model.max_num_seqs;
  limits.block_size = known.launch.model.block_size;
  limits.num_kv_blocks = known.launch.num_kv_blocks;
  return plan::PredictOnHost(known.deployment(), load, limits);
}

}  // namespace

absl::StatusOr<SpeedPredictor> MakeSpeedPredictor(const PredictedLaunch& launch) {
  const std::string path = plan::DefaultProfilePath();
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return SpeedPredictor();
  auto known = std::make_shared<Known>();  // shared: std::function copies what it holds
  known->launch = launch;
  ASSIGN_OR_RETURN(known->profile, plan::LoadHostProfile(path));
  const std::filesystem::path directory = std::filesystem::absolute(launch.model.model, error);
  ASSIGN_OR_RETURN(known->model, plan::LoadModel((directory / "config.json").string()));
  ASSIGN_OR_RETURN(known->weights,
                   plan::FindWeightFormat(FormatOf(known->model.architecture, launch)));
  RETURN_IF_ERROR(plan::HostCosts::Create(known->deployment()).status());
  return SpeedPredictor([known](const ServedLoad& served) -> std::optional<SpeedPrediction> {
    const auto prediction = Predict(*known, served);
    if (!prediction.ok()) return std::nullopt;
    return SpeedPrediction{prediction->ttft_ms, prediction->tpot_ms, known->profile.source()};
  });
}

ServedLoad UsualRequest(int64_t max_model_len) {
  constexpr double kPrompt = 512;
  constexpr double kOutput = 128;
  const auto most = static_cast<double>(max_model_len);
  ServedLoad load;
  load.num_outputs = 1;
  load.mean_prompt_tokens = std::max(1.0, std::min(kPrompt, most / 2));
  load.mean_output_tokens = std::max(1.0, std::min(kOutput, most / 4));
  load.mean_requests = 1;
  return load;
}

}  // namespace lockstep
