// What one step costs on the stages of a deployment: the question that the roofline answers for
// GPUs and a calibrated host's measurements answer for CPUs. Pure; any thread.
#pragma once

namespace lockstep::plan {

// One step: a chunk of a prompt whose tokens before it are computed already, and decodes.
struct StepLoad {
  double prefill_tokens = 0;
  double prefill_start = 0;
  double prompts = 1;  // that the prefill_tokens belong to, if there are any
  double decodes = 0;
  double decode_context = 0;  // tokens attended by each decode
  // Stages that compute at the same time; they share the memory of a host. 0: all.
  int active_stages = 0;
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

class StageCosts {
 public:
  virtual ~StageCosts() = default;
  virtual int num_stages() const = 0;
  // The slowest stage's.
  virtual StepCost SlowestStage(const StepLoad& load) const = 0;
  // From what the stage before sends to what it sends; seconds.
  virtual double StageSeconds(int stage, const StepLoad& load) const = 0;
  // One token through all stages, one after the other, with the transfers between them; seconds.
  virtual double SumOfStages(const StepLoad& load) const = 0;
};

}  // namespace lockstep::plan
