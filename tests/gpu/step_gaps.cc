#include "tests/gpu/step_gaps.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "model/sampling/device_choice.h"
#include "model/sampling/vocab_sampler.h"
#include "tests/gpu/device_event.h"

namespace lockstep::bench {
namespace {

constexpr int kWarmUps = 5;

struct Step {
  DeviceEvent begin;
  DeviceEvent end;
  std::vector<MarkedCopy> copies;
  bool is_late = false;

  double CopySeconds() const {
    double seconds = 0;
    for (const MarkedCopy& copy : copies) seconds += copy.end.SecondsSince(copy.begin);
    return seconds;
  }
};

// As the step loop issues them.
class Steps {
 public:
  Steps(LlamaStage& stage, MarkingBackend& backend, RankGroups& groups, const UniformBatch& decodes)
      : stage_(stage),
        backend_(backend),
        groups_(groups),
        vocab_size_(decodes.vocab_size),
        batch_(MakeUniformBatch(decodes)) {
    params_.top_k = 50;
    for (int64_t i = 0; i < decodes.num_seqs; ++i) {
      rows_.push_back({.params = &params_,
                       .history = &history_,
                       .sequence_index = static_cast<uint32_t>(i),
                       .position = static_cast<uint64_t>(decodes.context)});
    }
  }

  absl::StatusOr<std::vector<Step>> Run(int num_steps) {
    ASSIGN_OR_RETURN(chooser_, DeviceChooser::Create(backend_, vocab_size_, *groups_.tp,
                                                     static_cast<int64_t>(rows_.size())));
    VocabSampler sampler({.vocab_size = vocab_size_, .eos_token_ids = {}}, *groups_.tp,
                         chooser_.get());
    std::vector<Step> steps(static_cast<size_t>(num_steps));
    for (size_t i = 0; i < steps.size(); ++i) {
      RETURN_IF_ERROR(Issue(steps[i], sampler));
      if (i == 0) continue;
      steps[i].is_late = steps[i - 1].end.IsReached();
      RETURN_IF_ERROR(sampler.Finish(outcomes_));
    }
    RETURN_IF_ERROR(sampler.Finish(outcomes_));
    return steps;
  }

 private:
  absl::Status Issue(Step& step, VocabSampler& sampler) {
    step.begin.Record(backend_.stream());
    backend_.MarkCopiesIn(&step.copies);
    RETURN_IF_ERROR(stage_.Forward(batch_, chooser_->chosen_on_device()));
    ASSIGN_OR_RETURN(const float* logits,
                     stage_.LogitsOnDevice(0, static_cast<int64_t>(rows_.size())));
    RETURN_IF_ERROR(sampler.Begin(rows_, logits));
    LS_CHECK(sampler.DecidesAll());
    backend_.MarkCopiesIn(nullptr);
    step.end.Record(backend_.stream());
    batch_.new_blocks.clear();  // from now on
    batch_.token_sources.resize(rows_.size());
    std::iota(batch_.token_sources.begin(), batch_.token_sources.end(), 0);
    return absl::OkStatus();
  }

  LlamaStage& stage_;
  MarkingBackend& backend_;
  RankGroups& groups_;
  const int64_t vocab_size_;
  StepBatch batch_;
  SamplingParams params_;
  TokenHistory history_;
  std::vector<LogitsRow> rows_;
  std::vector<RowOutcome> outcomes_;
  std::unique_ptr<DeviceChooser> chooser_;
};

double Quantile(std::vector<double> values, double quantile) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(quantile * static_cast<double>(values.size() - 1))];
}

}  // namespace

absl::StatusOr<StepGaps> MeasureStepGaps(LlamaStage& stage, MarkingBackend& backend,
                                         RankGroups& groups, const UniformBatch& decodes,
                                         int num_steps) {
  Steps run(stage, backend, groups, decodes);
  ASSIGN_OR_RETURN(const std::vector<Step> steps, run.Run(kWarmUps + num_steps + 1));
  std::vector<double> seconds;
  std::vector<double> between;
  std::vector<double> copies;
  std::vector<double> idle;
  int num_late = 0;
  for (size_t i = kWarmUps; i + 1 < steps.size(); ++i) {
    seconds.push_back(steps[i + 1].begin.SecondsSince(steps[i].begin));
    between.push_back(steps[i + 1].begin.SecondsSince(steps[i].end) / seconds.back());
    copies.push_back(steps[i].CopySeconds() / seconds.back());
    idle.push_back(between.back() + copies.back());
    num_late += steps[i + 1].is_late ? 1 : 0;
  }
  return StepGaps{.step_seconds = Quantile(seconds, 0.5),
                  .median_share = Quantile(idle, 0.5),
                  .p95_share = Quantile(idle, 0.95),
                  .between_share = Quantile(between, 0.5),
                  .copies_share = Quantile(copies, 0.5),
                  .late_share = static_cast<double>(num_late) / num_steps};
}

}  // namespace lockstep::bench
