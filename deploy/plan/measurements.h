// Public end-to-end measurements of serving engines, and what the model predicts for them. Reads a
// file; otherwise pure. For the fit and for its test.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/plan/latency.h"
#include "deploy/plan/roofline.h"

namespace lockstep::plan {

// A line of measured_serving.csv: a closed loop of `concurrency` clients.
struct Measurement {
  std::string model;  // built-in name
  std::string gpu;
  std::string engine;
  std::string engine_version;
  std::string weights;
  std::string kv;
  double input_tokens = 0;
  double output_tokens = 0;
  double concurrency = 0;
  int tp = 1;
  int pp = 1;
  bool expert_parallel = false;
  double ttft_ms = 0;  // measured
  double tpot_ms = 0;
  bool in_fit_half = false;  // by a hash of everything but the times
  Layout layout() const { return {.tp = tp, .pp = pp, .expert_parallel = expert_parallel}; }
};

// NOT_FOUND, INVALID_ARGUMENT naming the line.
absl::StatusOr<std::vector<Measurement>> LoadMeasurements(const std::string& path);

// What does not change while coefficients do.
class MeasuredCase {
 public:
  static absl::StatusOr<MeasuredCase> Create(const Measurement& measurement);
  Prediction PredictWith(const EngineProfile& engine, const LoadPattern& pattern) const;
  const Measurement& measurement() const { return measurement_; }
  // Requests whose caches fit at the same time, half of their output written: engines give out
  // blocks as sequences grow.
  int64_t max_requests() const { return max_requests_; }
  // Share of the GPUs' rate that the prompts alone would have taken had all been computed.
  double PromptFlopsShare() const;

 private:
  Measurement measurement_;
  Model model_;
  Gpu gpu_;
  WeightFormat weights_;
  KvFormat kv_;
  KvPolicy policy_;
  int64_t max_requests_ = 1;
  std::vector<StageWork> stages_;
  Interconnect net_;
};

// A line of measured_collectives.csv, all-reduces only.
struct MeasuredAllReduce {
  std::string link;
  int ranks = 2;
  double bytes = 0;
  double seconds = 0;
};
// The fastest implementation on every link for every size (kernels launched one by one from a host
// are left out).
absl::StatusOr<std::vector<MeasuredAllReduce>> LoadAllReduces(const std::string& path);

}  // namespace lockstep::plan
