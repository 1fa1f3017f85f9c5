// A replica that exists only in virtual time: a SimulatedRank for what it computes, a cost model
// for when it is done, and its loss on demand. The caller moves the clock. Deterministic.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/engine/fake_language_model.h"
#include "runtime/engine/simulated_rank.h"
#include "runtime/engine/step_plan.h"

namespace lockstep::engine {

// What a step computes, for whoever knows how long that takes.
struct SimulatedStep {
  int num_chunks = 0;  // of prompts
  int64_t num_chunk_tokens = 0;
  int64_t num_chunk_context_tokens = 0;  // that the chunks' last tokens attend to, summed
  int num_decodes = 0;
  int64_t num_decode_context_tokens = 0;  // summed likewise
  int num_active = 1;  // steps in the pipeline when this one enters it, itself among them
};

// How long a stage works on a step. A stage works on one step at a time.
using StageTime = std::function<absl::Duration(const SimulatedStep& step, int stage)>;

// A step takes base + num_tokens * per_token + (sum of context lengths) * per_context_token through
// the whole pipeline, an equal share of it on each stage.
struct SimulatedCosts {
  absl::Duration base = absl::Milliseconds(1);
  absl::Duration per_token = absl::Microseconds(10);
  absl::Duration per_context_token = absl::Nanoseconds(100);

  StageTime OverStages(int num_stages) const;
};

class SimulatedExecutor {
 public:
  // The model must outlive the executor.
  SimulatedExecutor(const SimulatedRankOptions& rank, StageTime stage_time,
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

  // A fault. Results that are there already can still be taken.
  void LoseReplica() { is_lost_ = true; }

  const SimulatedRank& rank() const { return rank_; }

 private:
  struct Running {
    absl::Time done;
    StepResult result;
  };

  absl::Time DoneAt(const StepPlan& plan);
  SimulatedStep Describe(const StepPlan& plan) const;

  const StageTime stage_time_;
  SimulatedRank rank_;
  absl::Time now_;
  std::vector<absl::Time> stage_free_at_;  // [pipeline_depth]
  std::vector<absl::Time> sample_at_;      // [max_num_seqs], when the slot's last sample is known
  std::deque<Running> running_;
  uint64_t last_taken_step_ = 0;
  bool is_lost_ = false;
};

}  // namespace lockstep::engine
