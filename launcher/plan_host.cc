// lockstep plan for the CPUs of this host: --calibrate measures them, --gpu cpu predicts.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "deploy/plan/host_plan.h"
#include "kernels/base/available_memory.h"
#include "kernels/base/status_macros.h"
#include "launcher/base/signals.h"
#include "launcher/calibration/calibration.h"
#include "launcher/cli/command.h"
#include "launcher/cli/serving_flags.h"
#include "launcher/plan_options.h"

namespace lockstep {
namespace {

// Where `--calibrate` writes and `--gpu cpu` reads.
absl::StatusOr<std::string> ProfilePath(const std::string& named) {
  const std::string path = named.empty() ? plan::DefaultProfilePath() : named;
  if (!path.empty()) return path;
  return absl::InvalidArgumentError(
      "neither XDG_CONFIG_HOME nor HOME says where the profile lies: name its file");
}

// One that was named must be there; the default one may be missing.
absl::StatusOr<std::optional<plan::HostProfile>> FindProfile(const PlanOptions& options) {
  const auto path = ProfilePath(options.profile);
  std::error_code error;
  if (options.profile.empty() && (!path.ok() || !std::filesystem::exists(*path, error))) {
    return std::nullopt;
  }
  RETURN_IF_ERROR(path.status());
  ASSIGN_OR_RETURN(plan::HostProfile profile, plan::LoadHostProfile(*path));
  return profile;
}

// A usual request is a smaller one than on GPUs, as far as the context allows.
absl::Status FillHostLoad(const PlanOptions& options, plan::PlanRequest& what,
                          plan::HostPlanRequest& request) {
  const int64_t positions = what.model.architecture.max_position_embeddings;
  const auto most = static_cast<double>(options.context.value_or(positions));
  what.input_tokens = std::min(512.0, std::floor(most / 2));
  what.output_tokens = std::min(128.0, std::floor(most / 4));
  what.concurrency = 1;
  RETURN_IF_ERROR(FillPlannedLoad(options, what));
  RETURN_IF_ERROR(CheckRequest(what));
  request.max_model_len = options.context ? what.context : positions;
  request.concurrency = what.concurrency;
  request.arrivals = {what.trace, what.rate_per_s, what.input_tokens, what.output_tokens};
  request.ttft_p95_ms = what.ttft_p95_ms;
  request.tpot_p95_ms = what.tpot_p95_ms;
  return absl::OkStatus();
}

// Ranks as processes of this host, as `serve` starts them without GPUs.
absl::StatusOr<plan::HostPlan> ComputeHostPlan(const PlanOptions& options) {
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
  ASSIGN_OR_RETURN(request.profile, FindProfile(options));
  request.cores = ThreadsPerRank({}, 1);
  request.tp = options.tp.value_or(0);
  request.pp = options.pp.value_or(0);
  return plan::MakeHostPlan(request);
}

// Its directory, made when it is absent: better known before minutes of measuring.
absl::Status MakeRoomFor(const std::string& path) {
  std::error_code error;
  const std::filesystem::path directory = std::filesystem::absolute(path, error).parent_path();
  std::filesystem::create_directories(directory, error);
  if (!error && ::access(directory.c_str(), W_OK) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write in ", directory.string()));
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
  if (path.empty()) return absl::OkStatus();
  std::ofstream file(path, std::ios::trunc);
  file << text;
  file.close();
  if (file) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", path));
}

int RunHostPlan(const PlanOptions& options) {
  const auto plan = ComputeHostPlan(options);
  if (!plan.ok()) return FailUsage("plan", std::string(plan.status().message()));
  std::printf("%s", (options.json ? HostPlanJson(*plan) : HostPlanText(*plan)).c_str());
  return plan->answer().broken.empty() ? kExitOk : kExitFailure;
}

int RunCalibration(const PlanOptions& options) {
  const auto path = ProfilePath(options.calibrate);
  if (!path.ok()) return FailUsage("plan", std::string(path.status().message()));
  if (const absl::Status ready = MakeRoomFor(*path); !ready.ok()) return Fail("plan", ready);
  CalibrationOptions calibration;
  calibration.quick = options.quick;
  calibration.weights = options.weights;
  if (options.tp || options.pp) {
    calibration.layout = {.tp = options.tp.value_or(1), .pp = options.pp.value_or(1)};
  }
  calibration.on_progress = [](const std::string& line) {
    std::fprintf(stderr, "%s\n", line.c_str());
  };
  InterruptWatcher interrupts;
  const auto profile = Calibrate(calibration, interrupts);
  if (!profile.ok()) return Fail("plan", profile.status());
  const std::string json = HostProfileJson(*profile);
  if (const absl::Status written = WritePlanFile(*path, json); !written.ok()) {
    return Fail("plan", written);
  }
  if (options.json) {
    std::printf("%s", json.c_str());
  } else {
    const bool is_default = *path == plan::DefaultProfilePath();
    std::printf("Wrote %s: %s\n", path->c_str(),
                is_default ? "`lockstep plan --gpu cpu` and `lockstep serve` use it"
                           : "`lockstep plan --gpu cpu --profile FILE` uses it");
  }
  return kExitOk;
}

}  // namespace lockstep
