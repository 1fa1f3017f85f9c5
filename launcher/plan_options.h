// What `lockstep plan` was asked, for the files that answer it: GPUs (plan.cc), this host's CPUs
// (plan_host.cc), and what was calibrated (plan_calibration.cc).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "deploy/plan/host_profile.h"
#include "deploy/plan/planner.h"

namespace CLI {
class Option;
}

namespace lockstep {

struct PlanOptions {
  std::string model;
  std::string gpu = "h100-sxm-80g";
  std::optional<int> nodes;
  std::optional<int> gpus_per_node;
  std::optional<int64_t> context;
  std::optional<double> concurrency;
  std::string rate;
  std::string trace;
  std::optional<double> input;
  std::optional<double> output;
  std::string weights;
  std::string kv;
  std::string ttft_p95;
  std::string tpot_p95;
  std::string price;
  std::string engine;  // empty: Lockstep's own speed where it was calibrated, else vLLM's
  std::optional<int> tp;
  std::optional<int> pp;
  bool expert_parallel = false;
  int64_t kv_budget = 0;
  int64_t kv_read = 0;
  int64_t layers_per_kv = 1;
  double utilization = 0.90;
  int block_size = 16;
  std::string explain;
  bool list = false;
  std::string svg;
  std::string html;
  bool json = false;
  const CLI::Option* calibrate_flag = nullptr;  // whose value may be left out
  std::string calibrate;
  bool quick = false;
  std::string device = "auto";
  std::string probe_sizes;   // FindProbeSizes; empty: the device's
  double probe_seconds = 0;  // the longest a job may take; 0: usual
  std::string profile;
};

// Model, formats and policy of the request. Errors of the catalog and of unknown formats.
absl::Status FillPlannedModel(const PlanOptions& options, plan::PlanRequest& request);
// Rate, trace, sizes and limits; what is not named stays as it is. INVALID_ARGUMENT, NOT_FOUND.
absl::Status FillPlannedLoad(const PlanOptions& options, plan::PlanRequest& request);
// Nothing for an empty path. UNAVAILABLE.
absl::Status WritePlanFile(const std::string& path, const std::string& text);

// What was measured on such devices: in --profile, which must be there, or on this host before,
// which may be missing. NOT_FOUND, INVALID_ARGUMENT naming the file.
absl::StatusOr<std::optional<plan::HostProfile>> FindPlanProfile(const PlanOptions& options,
                                                                 const std::string& device_kind);

// --gpu cpu, and --calibrate into that file; exit codes.
int RunHostPlan(const PlanOptions& options);
int RunCalibration(const PlanOptions& options);

}  // namespace lockstep
