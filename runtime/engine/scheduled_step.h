// A plan, and whose the entries of its work are.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/engine/sequence.h"
#include "runtime/engine/step_plan.h"

namespace lockstep::engine {

// Another sequence may have the slot when the result comes.
struct ScheduledEntry {
  Sequence* sequence = nullptr;
  uint32_t slot = 0;
  int64_t start = 0;  // the first position it computes
  uint32_t num_tokens = 0;
  bool sample = false;
  std::vector<int32_t> drafts = {};
  bool quotes_others = false;  // the drafts, what other outputs said
};

struct ScheduledStep {
  StepPlan plan;
  std::vector<ScheduledEntry> entries;  // as plan.work
};

}  // namespace lockstep::engine
