// The time of one step on the CPUs of a calibrated host, whose ranks share its cores and memory, or
// on its GPUs, one for each rank. Pure; any thread.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "deploy/plan/formats.h"
#include "deploy/plan/host_profile.h"
#include "deploy/plan/kv_bytes.h"
#include "deploy/plan/stage_costs.h"
#include "deploy/plan/stage_work.h"

namespace lockstep::plan {

// What ranks of `serve` compute on this host.
struct HostDeployment {
  const Architecture& model;
  const WeightFormat& weights;
  const HostProfile& profile;
  Layout layout;
  int threads_per_rank = 1;
};

class HostCosts : public StageCosts {
 public:
  // The layout must have been checked. INVALID_ARGUMENT for formats that the runtime does not hold,
  // NOT_FOUND for one that was not measured.
  static absl::StatusOr<HostCosts> Create(const HostDeployment& deployment);

  int num_stages() const override { return static_cast<int>(stages_.size()); }
  StepCost SlowestStage(const StepLoad& load) const override;
  double StageSeconds(int stage, const StepLoad& load) const override;
  double SumOfStages(const StepLoad& load) const override;
  StepCost CostOf(int stage, const StepLoad& load) const;

 private:
  // Of a rank while so many stages compute.
  struct Speed {
    RankSpeed rank;
    FormatSpeed layers;
    FormatSpeed head;
  };

  HostCosts() = default;
  int ActiveStages(const StepLoad& load) const;
  double SecondsToNextStage(int stage, const StepLoad& load) const;

  int tp_ = 1;
  std::vector<StageWork> stages_;
  std::vector<double> kv_bytes_per_token_;  // of a stage's fullest rank
  std::vector<Speed> speeds_;               // by active stages, from one on
  double step_us_ = 0;
  double sequence_us_ = 0;
};

}  // namespace lockstep::plan
