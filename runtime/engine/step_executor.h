// Carries plans out and results back. Two bodies: the replica of real ranks (runtime/controller)
// and SimulatedExecutor, which tests, benchmarks and the planner share. Called by the thread that
// drives the engine.
//
// Invariant: results come in the order of the plans.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "runtime/engine/step_plan.h"

namespace lockstep::engine {

class StepExecutor {
 public:
  virtual ~StepExecutor() = default;

  // Sends the plan on its way; never waits.
  virtual void Submit(const StepPlan& plan) = 0;

  // The oldest result that is there and was not taken yet, or nullopt. UNAVAILABLE: the replica is
  // lost, with the cause; no result will come any more.
  virtual absl::StatusOr<std::optional<StepResult>> TakeResult() = 0;
};

}  // namespace lockstep::engine
