// The time of one step on one stage: for every operation the larger of bytes over bandwidth and
// operations over rate, then collectives and overheads. Pure; any thread.
//
// Source of the idea: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
#pragma once

#include <vector>

#include "deploy/plan/catalog.h"
#include "deploy/plan/collectives.h"
#include "deploy/plan/engine_profile.h"
#include "deploy/plan/kv_bytes.h"
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

// One step: a chunk of a prompt whose tokens before it are computed already, and decodes.
struct StepLoad {
  double prefill_tokens = 0;
  double prefill_start = 0;
  double decodes = 0;
  double decode_context = 0;  // tokens attended by each decode
};

// Seconds.
struct StepCost {
  double linear = 0;
  double lm_head = 0;
  double kv_read = 0;
  double prefill_attention = 0;
  double activations = 0;
  double communication = 0;
  double overhead = 0;
  double launch_floor = 0;  // what a step with a prompt waits for its launches beyond all others
  double total() const {
    return linear + lm_head + kv_read + prefill_attention + activations + communication + overhead +
           launch_floor;
  }
  const char* largest() const;  // its name, for people
};

class Roofline {
 public:
  explicit Roofline(const Deployment& deployment);
  // With work and network that were counted before; only rates are new.
  Roofline(const Deployment& deployment, std::vector<StageWork> stages, Interconnect net);

  StepCost CostOf(int stage, const StepLoad& load) const;
  // The slowest stage's.
  StepCost SlowestStage(const StepLoad& load) const;
  // One token through all stages, one after the other, with the transfers between them.
  double SumOfStages(const StepLoad& load) const;
  int num_stages() const { return static_cast<int>(stages_.size()); }
  const Interconnect& interconnect() const { return net_; }

 private:
  double KvBytesOfDecode(const StageWork& work, double context) const;

  const Deployment deployment_;
  const Interconnect net_;
  const std::vector<StageWork> stages_;
  // Stages that cost alike: the first of them and how many there are.
  struct Kind {
    int stage = 0;
    int count = 0;
  };
  std::vector<Kind> kinds_;
  double linear_flops_ = 0;  // reached, per second
  double dense_flops_ = 0;   // of 16-bit operands
  double weight_rate_ = 0;   // bytes per second
  double kv_rate_ = 0;
  bool layers_are_alike_ = false;  // all have the same window, or none
};

}  // namespace lockstep::plan
