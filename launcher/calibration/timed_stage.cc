#include "launcher/calibration/timed_stage.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/checkpoint/checkpoint.h"
#include "model/llama/uniform_batch.h"

namespace lockstep {
namespace {

constexpr int kBlockSize = 16;
constexpr int kMinPasses = 3;
constexpr int kMaxPasses = 25;
constexpr int kTurns = 9;
// Steps of a few tokens are short, and what decodes consist of.
constexpr size_t kFewTokens = 8;
constexpr int kRepeatsOfFew = 3;
// Of a row of steps that are issued ahead: beside it, waiting for its end is nothing.
constexpr double kRowSeconds = 0.01;
constexpr int kMaxRow = 100;
// Backends that keep steps look at one, record it and then repeat it.
constexpr int kWarmUpsToKeep = 3;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// For the longest contexts, and for steps of as many sequences or tokens as there are.
int64_t NumKvBlocks(const ProbeSizes& sizes) {
  const int64_t tokens = std::max(
      {sizes.long_seqs * sizes.long_context, sizes.max_tokens, sizes.most_decodes * kProbeShort});
  return tokens / kBlockSize;
}

}  // namespace

absl::StatusOr<ProbeJob> MakeProbeJob(const MpiSession& session, int tp) {
  if (session.world_size() % tp != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a job of ", session.world_size(), " ranks is no number of groups of ", tp));
  }
  ASSIGN_OR_RETURN(const ProcessGrid group, ProcessGrid::Create(tp, 1));
  ASSIGN_OR_RETURN(const ProcessGrid stages, ProcessGrid::Create(tp, session.world_size() / tp));
  ASSIGN_OR_RETURN(const ProcessGrid all, ProcessGrid::Create(session.world_size(), 1));
  ProbeJob job{group, {}, {}};
  ASSIGN_OR_RETURN(job.groups, MakeMpiGroups(session, stages));
  ASSIGN_OR_RETURN(job.all, MakeMpiGroups(session, all));
  return job;
}

absl::StatusOr<std::unique_ptr<TimedStage>> TimedStage::Load(const TimedStageOptions& options,
                                                             ProbeJob& job) {
  std::unique_ptr<TimedStage> timed(new TimedStage(job));
  ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(options.model));
  const ModelConfig& config = checkpoint->config();
  timed->vocab_size_ = config.vocab_size;
  timed->hidden_size_ = config.hidden_size;
  timed->most_decodes_ = options.sizes.most_decodes;
  const ProbeFormat& format = options.format;
  ASSIGN_OR_RETURN(timed->device_, RankDevice::Open(options.device, format.dtype, nullptr));
  const int64_t max_tokens = options.sizes.max_tokens;
  RETURN_IF_ERROR(
      timed->device_->Join(job.groups, {.max_hidden_states = max_tokens * config.hidden_size,
                                        .bytes_back = timed->message_bytes()}));
  StageOptions stage;
  stage.weights = format.dtype == DType::kF32 ? WeightDType::kF32 : WeightDType::kBF16;
  stage.quantize = format.quantization;
  stage.num_load_threads = options.device.cpu.num_threads;
  stage.limits = {.max_batched_tokens = max_tokens,
                  .max_num_seqs = std::max({options.sizes.most_decodes, options.sizes.long_seqs,
                                            max_tokens / kProbePrompt}),
                  .max_model_len = options.sizes.long_context,
                  .block_size = kBlockSize};
  ASSIGN_OR_RETURN(timed->stage_, LlamaStage::Load(*checkpoint, job.group, job.tp_rank(),
                                                   timed->backend(), timed->groups(), stage, {}));
  RETURN_IF_ERROR(timed->stage_->AllocateKvCache(NumKvBlocks(options.sizes)));
  return timed;
}

StepBatch TimedStage::Batch(int64_t num_seqs, int64_t context, int64_t new_tokens) const {
  return MakeUniformBatch({num_seqs, context, new_tokens, kBlockSize, vocab_size_});
}

StepBatch TimedStage::Tokens(int64_t num_tokens) const {
  if (num_tokens <= most_decodes_) return Batch(num_tokens, kProbeShort, 1);
  const int64_t tokens_each = std::min(num_tokens, kProbePrompt);
  return Batch(num_tokens / tokens_each, tokens_each, tokens_each);
}

// What was issued is done, and was not cut short.
absl::Status TimedStage::Finish() {
  backend().Synchronize();
  RETURN_IF_ERROR(groups().tp->Health());
  return groups().pp->Health();
}

// As in serving, where steps bring next to nothing of block tables.
absl::StatusOr<double> TimedStage::TimeRow(const StepBatch& first, int num_steps) {
  StepBatch batch = first;
  RETURN_IF_ERROR(stage_->Forward(TakeNewBlocks(batch)));
  RETURN_IF_ERROR(Finish());
  RETURN_IF_ERROR(job_.all.tp->Barrier());
  const double begin = Now();
  for (int i = 0; i < num_steps; ++i) RETURN_IF_ERROR(stage_->Forward(batch));
  RETURN_IF_ERROR(Finish());
  RETURN_IF_ERROR(job_.groups.tp->Barrier());
  return (Now() - begin) / num_steps;
}

absl::StatusOr<std::vector<double>> TimedStage::WarmUp(const std::vector<StepBatch>& batches) {
  const int num_times = backend().KeepsSteps() ? kWarmUpsToKeep : 1;
  std::vector<double> last(batches.size());
  for (size_t i = 0; i < batches.size(); ++i) {
    for (int time = 0; time < num_times; ++time) {
      ASSIGN_OR_RETURN(last[i], TimeRow(batches[i], 1));
    }
  }
  return last;
}

// Rank 0 decides for all.
absl::StatusOr<TimedStage::Schedule> TimedStage::Agree(const std::vector<double>& step_seconds,
                                                       double seconds) {
  std::vector<float> decided(step_seconds.size() + 1, 0.0f);
  if (job_.all.tp->rank() == 0) {
    double pass_seconds = 0;
    for (size_t i = 0; i < step_seconds.size(); ++i) {
      const double row = issues_ahead() ? std::ceil(kRowSeconds / step_seconds[i]) : 1.0;
      decided[i] = static_cast<float>(std::clamp(row, 1.0, static_cast<double>(kMaxRow)));
      pass_seconds += static_cast<double>(decided[i]) * step_seconds[i];
    }
    decided.back() = static_cast<float>(seconds / pass_seconds);
  }
  RETURN_IF_ERROR(job_.all.tp->AllReduceSum(decided.data(), static_cast<int64_t>(decided.size())));
  Schedule schedule;
  schedule.num_passes =
      std::clamp(static_cast<int>(std::min(decided.back(), 1e6f)), kMinPasses, kMaxPasses);
  for (size_t i = 0; i < step_seconds.size(); ++i) {
    schedule.row_lengths.push_back(static_cast<int>(decided[i]));
  }
  return schedule;
}

absl::StatusOr<std::vector<double>> TimedStage::Time(const std::vector<StepBatch>& batches,
                                                     double seconds) {
  ASSIGN_OR_RETURN(const std::vector<double> first, WarmUp(batches));
  ASSIGN_OR_RETURN(const Schedule schedule, Agree(first, seconds));
  std::vector<std::vector<double>> times(batches.size());
  for (int pass = 0; pass < schedule.num_passes; ++pass) {
    for (size_t i = 0; i < batches.size(); ++i) {
      const int repeats = batches[i].token_ids.size() <= kFewTokens ? kRepeatsOfFew : 1;
      for (int repeat = 0; repeat < repeats; ++repeat) {
        ASSIGN_OR_RETURN(const double spent, TimeRow(batches[i], schedule.row_lengths[i]));
        times[i].push_back(spent);
      }
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& each : times) medians.push_back(Median(std::move(each)));
  return medians;
}

absl::StatusOr<double> TimedStage::TimeFirstGroup(const StepBatch& batch) {
  std::vector<double> times;
  for (int i = 0; i < kTurns && job_.groups.pp->rank() == 0; ++i) {
    const double begin = Now();
    RETURN_IF_ERROR(stage_->Forward(batch));
    RETURN_IF_ERROR(Finish());
    times.push_back(Now() - begin);
  }
  RETURN_IF_ERROR(job_.all.tp->Barrier());
  return times.empty() ? 0.0 : Median(std::move(times));
}

absl::StatusOr<double> TimedStage::TimeTurn(const StepBatch& batch) {
  Communicator& stages = *groups().pp;
  const int next = (stages.rank() + 1) % stages.size();
  const int previous = (stages.rank() + stages.size() - 1) % stages.size();
  const int64_t bytes = message_bytes();
  ASSIGN_OR_RETURN(const DeviceBuffer message, backend().Allocate(bytes));
  std::vector<double> times;
  for (int i = 0; i < kTurns; ++i) {
    const double begin = Now();
    if (stages.rank() > 0) RETURN_IF_ERROR(stages.Recv(previous, message.data(), bytes));
    RETURN_IF_ERROR(stage_->Forward(batch));
    RETURN_IF_ERROR(stages.Send(next, message.data(), bytes));
    if (stages.rank() == 0) RETURN_IF_ERROR(stages.Recv(previous, message.data(), bytes));
    RETURN_IF_ERROR(Finish());
    times.push_back((Now() - begin) / stages.size());
  }
  return Median(std::move(times));
}

}  // namespace lockstep
