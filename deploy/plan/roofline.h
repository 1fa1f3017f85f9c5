// The time of one step on one stage: for every operation the larger of bytes over bandwidth and
// operations over rate, then collectives and overheads. Pure; any thread.
//
// Source of the idea: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "deploy/plan/catalog.h"
#include "deploy/plan/collectives.h"
#include "deploy/plan/engine_profile.h"
#include "deploy/plan/kv_bytes.h"
#include "deploy/plan/stage_costs.h"
#include "deploy/plan/stage_work.h"

namespace lockstep::plan {

// What runs: a model in its formats, laid out over GPUs, under an engine.
struct Deployment {
  const Architecture& model;
  const WeightFormat& weights;
  const KvFormat& kv;
  const KvPolicy& policy;
  const Gpu& gpu;
  const EngineProfile& engine;
  Layout layout;
  int gpus_per_node = 8;
};

class Roofline : public StageCosts {
 public:
  explicit Roofline(const Deployment& deployment);
  // With work and network that were counted before; only rates are new.
  Roofline(const Deployment& deployment, std::vector<StageWork> stages, Interconnect net);

  StepCost CostOf(int stage, const StepLoad& load) const;
  StepCost SlowestStage(const StepLoad& load) const override;
  double StageSeconds(int stage, const StepLoad& load) const override;
  double SumOfStages(const StepLoad& load) const override;
  int num_stages() const override { return static_cast<int>(stages_.size()); }

 private:
  // Seconds of a step between the products of its layers; and what one with a prompt takes at
  // least.
  double LayersOverhead(const StageWork& work) const;
  double LaunchFloor(const StageWork& work) const;
  double FlopsPerKvByte(const StageWork& work) const;
  // Tokens that one of a prompt attends to, over the tokens of a step and the layers of a stage.
  double MeanAttended(const StageWork& work, const StepLoad& load) const;
  double KvBytesOfDecode(const StageWork& work, double context) const;
  double SecondsToNextStage(int stage, const StepLoad& load) const;

  const Deployment deployment_;
  const Interconnect net_;
  const std::vector<StageWork> stages_;
  const std::vector<int64_t> most_whole_bytes_;  // MostWholeBytesOfBorders
  // Stages that cost alike: the first of them and how many there are.
  struct Kind {
    int stage = 0;
    int count = 0;
  };
  std::vector<Kind> kinds_;
  double linear_flops_ = 0;  // reached, per second
  double dense_flops_ = 0;   // of attention and the LM head
  double weight_rate_ = 0;   // bytes per second
  double kv_rate_ = 0;
  bool layers_are_alike_ = false;  // all have the same window, or none
  // Of each stage: how many tokens its layers attend to at most, 0 for all, and their share.
  std::vector<std::map<int64_t, double>> windows_;
};

}  // namespace lockstep::plan
