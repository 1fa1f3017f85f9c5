// A small language for step plans by hand: numbers one can add in one's head.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/engine/step_plan.h"

namespace lockstep::testing {

// Collects what a step shall do; Take() gives the plan and begins the next step.
class PlanWriter {
 public:
  PlanWriter& Close(uint32_t slot) {
    plan_.closed.push_back(slot);
    return *this;
  }
  PlanWriter& Open(uint32_t slot, std::vector<int32_t> tokens, SamplingParams sampling = Greedy(),
                   uint32_t num_prompt_tokens = 0, uint32_t num_computed_tokens = 0) {
    engine::SlotOpen open;
    open.slot = slot;
    open.sampling = std::move(sampling);
    open.num_prompt_tokens =
        num_prompt_tokens > 0 ? num_prompt_tokens : static_cast<uint32_t>(tokens.size());
    open.num_computed_tokens = num_computed_tokens;
    open.tokens = std::move(tokens);
    plan_.opened.push_back(std::move(open));
    return *this;
  }
  PlanWriter& Grant(uint32_t slot, std::vector<int32_t> blocks) {
    plan_.grants.push_back({.slot = slot, .blocks = std::move(blocks)});
    return *this;
  }
  PlanWriter& Chunk(uint32_t slot, uint32_t num_tokens, bool sample) {
    plan_.work.push_back({.slot = slot, .num_tokens = num_tokens, .sample = sample});
    return *this;
  }
  PlanWriter& Decode(uint32_t slot) { return Chunk(slot, 1, true); }
  PlanWriter& Guess(uint32_t slot, std::vector<int32_t> drafts) {
    Decode(slot).plan_.work.back().drafts = std::move(drafts);
    return *this;
  }
  PlanWriter& Settle(uint32_t slot, std::vector<int32_t> tokens) {
    plan_.settled.push_back({.slot = slot, .tokens = std::move(tokens)});
    return *this;
  }
  engine::StepPlan Take() {
    plan_.step_id = next_step_++;
    return std::exchange(plan_, {});
  }

  static SamplingParams Greedy() {
    SamplingParams params;
    params.temperature = 0.0f;
    return params;
  }

 private:
  uint64_t next_step_ = 1;
  engine::StepPlan plan_;
};

}  // namespace lockstep::testing
