// The worker's main loop: plan in, batch, forward, sample, result out. Knows no wire.
//
// Several steps are in flight over the stages of a pipeline, each stage working through plans in
// order. Hidden states travel from stage to next stage inside Forward; sampled token ids travel
// from the last stage straight to the first, between hosts over the same pipeline group, or between
// devices, for which no host waits. Nothing can wait in a circle: a stage waits only for hidden
// states of the same step from the stage before, the first stage only for tokens of earlier steps,
// and the last stage's token messages are small enough (kTokensPerMessage) that sending them never
// waits for the first stage, which may just be waiting to hand over its next hidden states, or for
// a plan. (Of devices: parallel/cuda/pipeline_communicator.h.)
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/sampling/token_return.h"
#include "model/sampling/vocab_sampler.h"
#include "parallel/communicator.h"
#include "runtime/engine/step_plan.h"
#include "runtime/worker/plan_queue.h"
#include "runtime/worker/rank_progress.h"
#include "runtime/worker/slots.h"

namespace lockstep {

// One stage's computation: LlamaStage's, or a test's.
struct StageCalls {
  // Of batches with token_sources: those chosen last by device_logits, or the table of
  // token_return.
  std::function<absl::Status(const StepBatch&)> forward;
  // LlamaStage::CopyBlocks. Null: the host keeps none.
  std::function<absl::Status(const StepBlocks& blocks)> copy_blocks = nullptr;
  // Last stage: logits of rows [first, first + count) of logits_rows over this rank's vocabulary;
  // count <= max_logits_rows. On a device they are there until the next call.
  std::function<absl::StatusOr<const float*>(int64_t first, int64_t count)> logits;
  int64_t max_logits_rows = 256;
  // Where those logits lie, made for max_logits_rows rows at least: the host waits in steps that
  // have more rows than it was made for. Null: in the host's memory. Must outlive the loop.
  DeviceChooser* device_logits = nullptr;
  // First and last stage of several: how tokens travel between their devices; null: between hosts.
  // Must outlive the loop.
  TokenReturn* token_return = nullptr;
};

// Called on the last stage's tp_rank 0 after every step, in step order. Must not wait: the next
// step begins when it returns.
using ResultSink = std::function<void(engine::StepResult)>;

struct StepLoopOptions {
  BatchLimits limits;
  int64_t num_blocks = 0;
  int64_t vocab_size = 0;
  std::vector<int32_t> eos_token_ids;
  grammar::ConstraintCache* constraints = nullptr;  // last stage, as SlotTableOptions has it
};

class StepLoop {
 public:
  // groups and progress must outlive the loop.
  StepLoop(const StepLoopOptions& options, StageCalls stage, RankGroups& groups,
           RankProgress& progress, ResultSink sink);

  // Until the queue is closed and empty (OK), or the first error: the queue's, a malformed plan's
  // (INVALID_ARGUMENT), a peer's that is gone (UNAVAILABLE), that of check, which is called now and
  // then while there is no plan.
  absl::Status Run(PlanQueue& queue, const WaitCheck& check = nullptr);

  // How many were issued before the results of the step before were read.
  int64_t num_steps_ahead() const { return num_steps_ahead_; }

 private:
  // A step whose tokens a device has been told to choose, and which are not read yet.
  struct OpenStep {
    uint64_t step_id = 0;
    std::vector<LogitsUse> uses;
    std::vector<SlotRef> sampled;
  };

  static constexpr int64_t kTokensPerMessage =
      Communicator::kMostCopiedBytes / static_cast<int64_t>(sizeof(int32_t));

  bool is_first() const { return groups_.pp->rank() == 0; }
  bool is_last() const { return groups_.pp->rank() == groups_.pp->size() - 1; }
  bool reports() const { return is_last() && groups_.tp->rank() == 0; }

  absl::StatusOr<std::optional<engine::StepPlan>> NextPlan(PlanQueue& queue,
                                                           const WaitCheck& check);
  absl::Status Step(const engine::StepPlan& plan);
  absl::Status CopyBlocks(const engine::StepPlan& plan);
  void FindGranted(const engine::StepPlan& plan);
  // First stage of several. Between devices: has the step's work wait for its tokens, and
  // afterwards says that those it samples will come.
  absl::Status AwaitTokens();
  absl::Status ExpectTokens();
  // Between hosts: takes in tokens that have arrived, and waits for those the step needs.
  absl::Status ReceiveTokens();
  absl::Status ReceiveOldest();
  // Last stage.
  bool MayRunAhead();
  absl::Status LearnLastTokens();
  absl::Status OpenThisStep();
  absl::Status FinishOpenStep();
  absl::Status SampleStep();
  absl::Status SampleTile(int64_t first, int64_t count);
  void LayOutRows(std::span<const LogitsUse> uses);
  void TakeOutcomes(std::span<const LogitsUse> uses);
  void AppendTokens(std::span<const SlotRef> sampled);
  absl::Status SendChosen();
  absl::Status SendTokens();
  void Report(uint64_t step_id);
  void AddPromptLogprobs(const LogitsUse& use, RowOutcome& outcome);

  StageCalls stage_;
  RankGroups& groups_;
  RankProgress& progress_;
  ResultSink sink_;
  const int64_t vocab_size_;
  SlotTable slots_;
  std::unique_ptr<VocabSampler> sampler_;  // last stage

  // First stage of several: whose tokens earlier steps sampled, oldest step first.
  std::deque<std::vector<SlotRef>> expected_;
  std::vector<std::vector<SlotRef>> spare_;
  std::vector<int32_t> sampled_slots_;
  std::vector<int64_t> first_written_;  // [num_slots], zeros; scratch, like the next two
  std::vector<int32_t> granted_;
  std::vector<int32_t> written_;

  std::optional<OpenStep> open_;
  std::vector<OpenStep> spare_steps_;
  int64_t num_steps_ahead_ = 0;

  // Last stage, of the step in work.
  std::vector<int32_t> tokens_;  // sampled, or received
  std::vector<LogitsRow> rows_;
  std::vector<RowOutcome> outcomes_;
  engine::StepResult result_;
};

}  // namespace lockstep
