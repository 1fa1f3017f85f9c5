#include "launcher/serving/speed_prediction.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "deploy/plan/catalog.h"
#include "deploy/plan/host_plan.h"
#include "kernels/base/status_macros.h"
#include "model/llama/stage_kv_cache.h"

namespace lockstep {
namespace {

// Of all outputs that run together: some seconds of simulation.
constexpr double kMostTokensAtOnce = 1e6;

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
  if (launch.rank.dtype != "auto") return launch.rank.dtype;
  if (!model.stored_weights.empty()) return model.stored_weights;
  if (launch.on_gpus && model.dtype == DType::kF16) return "f16";
  return model.dtype == DType::kBF16 ? "bf16" : "f32";
}

// Ranks on GPUs tell only once they have loaded: until then they hold what the load takes, and no
// more, for blocks are simulated one by one.
int64_t KvBlocksFor(const PredictedLaunch& launch, const plan::Load& load) {
  if (launch.num_kv_blocks > 0) return launch.num_kv_blocks;
  const double longest = load.input_tokens + 2.0 * load.output_tokens;
  const double blocks_each = std::ceil(longest / launch.model.block_size) + 1.0;
  const double most_seqs = static_cast<double>(launch.model.max_num_seqs);
  return static_cast<int64_t>(blocks_each * std::min(std::ceil(load.concurrency), most_seqs));
}

absl::StatusOr<plan::Prediction> Predict(const Known& known, const ServedLoad& served) {
  plan::Load load;
  load.input_tokens = std::max(1.0, served.mean_prompt_tokens);
  load.output_tokens = std::max(1.0, served.mean_output_tokens);
  load.concurrency = std::max(1.0, served.mean_requests / known.launch.num_replicas);
  if (load.concurrency * load.output_tokens > kMostTokensAtOnce) {
    return absl::OutOfRangeError("more tokens at once than are simulated while somebody waits");
  }
  plan::HostLimits limits;
  limits.max_batched_tokens = known.launch.model.max_batched_tokens;
  limits.max_num_seqs = known.launch.model.max_num_seqs;
  limits.block_size = known.launch.model.block_size;
  limits.num_kv_blocks = KvBlocksFor(known.launch, load);
  return plan::PredictOnHost(known.deployment(), load, limits);
}

}  // namespace

absl::StatusOr<SpeedPredictor> MakeSpeedPredictor(const PredictedLaunch& launch) {
  const std::string path = plan::DefaultProfilePath(launch.on_gpus ? "cuda" : "cpu");
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return SpeedPredictor();
  if (KvDTypeOf(launch.rank.kv_cache_dtype) == KvDType::kFp8) {
    return absl::NotFoundError("calibration does not measure KV caches in fp8");
  }
  auto known = std::make_shared<Known>();  // shared: std::function copies what it holds
  known->launch = launch;
  ASSIGN_OR_RETURN(known->profile, plan::LoadHostProfile(path));
  if (known->profile.device.is_gpu() != launch.on_gpus) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " was measured on ", known->profile.device_text()));
  }
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
