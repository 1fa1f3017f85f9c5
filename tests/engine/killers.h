// Requests that kill the replica which computes a certain position of a certain output.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>

#include "runtime/engine/engine_types.h"
#include "runtime/engine/step_plan.h"

namespace lockstep::engine {

// Plans do not say whose request they compute, but its seed.
inline constexpr uint64_t kKillerSeed = 1'000'000;

// kind: output kind % 2, at its token kind / 2.
inline void MakeKiller(EngineRequest& request, int kind) {
  request.emitted.clear();
  request.sampling.seed = kKillerSeed + kind;
}
inline bool IsKiller(const EngineRequest& request) { return request.sampling.seed >= kKillerSeed; }

// Reads the plans of one replica.
class Killers {
 public:
  void See(const StepPlan& plan) {
    for (const uint32_t slot : plan.closed) slots_.erase(slot);
    for (const SlotOpen& open : plan.opened) {
      Slot& slot = slots_[open.slot];
      slot = {.computed = open.num_computed_tokens};
      if (open.sampling.seed < kKillerSeed) continue;
      const uint64_t kind = open.sampling.seed - kKillerSeed;
      if (open.sequence_index == kind % 2) slot.deadly = open.num_prompt_tokens + kind / 2;
    }
    for (const SlotWork& work : plan.work) {
      Slot& slot = slots_.at(work.slot);
      slot.computed += work.num_tokens;
      if (slot.computed >= slot.deadly && !deadly_step_) deadly_step_ = plan.step_id;
    }
  }
  // The first that nobody survives.
  std::optional<uint64_t> deadly_step() const { return deadly_step_; }

 private:
  struct Slot {
    int64_t computed = 0;
    int64_t deadly = std::numeric_limits<int64_t>::max();
  };
  std::map<uint32_t, Slot> slots_;
  std::optional<uint64_t> deadly_step_;
};

}  // namespace lockstep::engine
