// The runtime's own forward pass over a synthetic model, timed on one rank while its peers do the
// same. Collective over the MPI job; MPI's thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/calibration/probe_models.h"
#include "model/llama/llama_stage.h"
#include "model/llama/step_batch.h"
#include "parallel/communicator.h"
#include "parallel/mpi_communicator.h"
#include "parallel/process_grid.h"
#include "runtime/worker/rank_device.h"

namespace lockstep {

constexpr int64_t kProbeShort = 16;    // tokens of a context that costs nothing
constexpr int64_t kProbePrompt = 128;  // tokens of a prompt, in steps of several

// Tensor parallel groups that compute at the same time, each on a model of its own.
struct ProbeJob {
  ProcessGrid group;  // one of them
  RankGroups groups;  // as stages of a pipeline
  RankGroups all;     // as if they were one group
  int tp_rank() const { return groups.tp->rank(); }
};
// INVALID_ARGUMENT for a job that is no number of groups.
absl::StatusOr<ProbeJob> MakeProbeJob(const MpiSession& session, int tp);

struct TimedStageOptions {
  std::string model;  // directory
  ProbeFormat format;
  DeviceOptions device;
  ProbeSizes sizes;
};

class TimedStage {
 public:
  // Takes the device as the ranks of a server do, so that its groups are theirs. Errors as
  // RankDevice's and LlamaStage's. job outlives it.
  static absl::StatusOr<std::unique_ptr<TimedStage>> Load(const TimedStageOptions& options,
                                                          ProbeJob& job);

  Backend& backend() { return device_->backend(); }
  RankGroups& groups() { return device_->groups(); }

  StepBatch Batch(int64_t num_seqs, int64_t context, int64_t new_tokens) const;
  // So many tokens whose contexts cost next to nothing.
  StepBatch Tokens(int64_t num_tokens) const;

  // Seconds of each batch, the median of passes through all of them: what disturbs the machine for
  // a while disturbs all alike. Where work is issued ahead, of a row of steps as they follow each
  // other in serving.
  absl::StatusOr<std::vector<double>> Time(const std::vector<StepBatch>& batches, double seconds);
  // While the other groups sleep; known to the first alone.
  absl::StatusOr<double> TimeFirstGroup(const StepBatch& batch);
  // When the groups take turns, each after the other's message, which returns from the last to the
  // first; known to the first alone.
  absl::StatusOr<double> TimeTurn(const StepBatch& batch);

 private:
  struct Schedule {
    int num_passes = 1;
    std::vector<int> row_lengths;  // steps, of each batch
  };

  explicit TimedStage(ProbeJob& job) : job_(job) {}
  bool issues_ahead() const { return device_->gpu().has_value(); }
  // A token's hidden states.
  int64_t message_bytes() const { return hidden_size_ * int64_t{sizeof(float)}; }
  absl::Status Finish();
  absl::StatusOr<double> TimeRow(const StepBatch& first, int num_steps);
  absl::StatusOr<std::vector<double>> WarmUp(const std::vector<StepBatch>& batches);
  absl::StatusOr<Schedule> Agree(const std::vector<double>& step_seconds, double seconds);

  ProbeJob& job_;
  int64_t vocab_size_ = 1;
  int64_t hidden_size_ = 1;
  int64_t most_decodes_ = 1;
  std::unique_ptr<RankDevice> device_;
  std::unique_ptr<LlamaStage> stage_;
};

}  // namespace lockstep
