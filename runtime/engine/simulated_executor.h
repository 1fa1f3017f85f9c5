// A replica that exists only in virtual time: a SimulatedRank for what it computes, a cost model
// for when it is done, and faults on demand. The caller moves the clock. Deterministic.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/engine/fake_language_model.h"
#include "runtime/engine/simulated_rank.h"
#include "runtime/engine/step_plan.h"

namespace lockstep::engine {

// A step takes base + num_tokens * per_token + (sum of context lengths) * per_context_token through
// the whole pipeline; each of the pipeline's stages takes an equal share of it and works on one
// step at a time.
struct SimulatedCosts {
  absl::Duration base = absl::Milliseconds(1);
  absl::Duration per_token = absl::Microseconds(10);
  absl::Duration per_context_token = absl::Nanoseconds(100);
};

class SimulatedExecutor {
 public:
  // The model must outlive the executor.
  SimulatedExecutor(const SimulatedRankOptions& rank, const SimulatedCosts& costs,
                    const FakeLanguageModel& model, absl::Time start);

  // Sends the plan on its way; never waits.
  void Submit(const StepPlan& plan);
  // The oldest result that is there and was not taken yet, or nullopt; results come in the order of
  // the plans. UNAVAILABLE: the replica is lost; no result will come any more.
  absl::StatusOr<std::optional<StepResult>> TakeResult();

  absl::Time now() const { return now_; }
  void AdvanceTo(absl::Time now);
  // When the next result is there; InfiniteFuture when nothing is in flight or the replica is lost.
  absl::Time NextResultTime() const;

  // Faults. Results that are there already can still be taken.
  void LoseReplica() { is_lost_ = true; }
  void DelayStep(uint64_t step_id, absl::Duration delay) { delays_[step_id] = delay; }

  const SimulatedRank& rank() const { return rank_; }

 private:
  struct Running {
    absl::Time done;
    StepResult result;
  };

  absl::Time DoneAt(const StepPlan& plan);

  const SimulatedCosts costs_;
  SimulatedRank rank_;
  absl::Time now_;
  std::vector<absl::Time> stage_free_at_;  // [pipeline_depth]
  std::vector<absl::Time> sample_at_;      // [max_num_seqs], when the slot's last sample is known
  std::deque<Running> running_;
  std::map<uint64_t, absl::Duration> delays_;
  uint64_t last_taken_step_ = 0;
  bool is_lost_ = false;
};

}  // namespace lockstep::engine
