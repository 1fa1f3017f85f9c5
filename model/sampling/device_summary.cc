#include "model/sampling/device_summary.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace lockstep {
namespace {

static_assert(sizeof(LogitsJob) % 8 == 0);  // those of a group follow each other

// A job's result, told apart.
struct Result {
  LogitsSummary summary;
  std::span<const LogitsSlice> slices;
  std::span<const LargestLogit> largest;
};

Result ResultAt(const std::byte* bytes, int num_slices) {
  const auto* summary = reinterpret_cast<const LogitsSummary*>(bytes);
  const auto* slices = reinterpret_cast<const LogitsSlice*>(summary + 1);
  const auto* largest = reinterpret_cast<const LargestLogit*>(slices + num_slices);
  return {.summary = *summary,
          .slices = {slices, static_cast<size_t>(num_slices)},
          .largest = {largest, static_cast<size_t>(summary->count)}};
}

void CopyStats(std::span<const LogitsSlice> from, std::span<SliceStats> to) {
  for (size_t i = 0; i < to.size(); ++i) to[i] = {.max = from[i].max, .sum = from[i].sum};
}

}  // namespace

DeviceSummarizer::DeviceSummarizer(Backend& backend, int64_t vocab_size, int tp, int tp_rank,
                                   int64_t max_rows)
    : backend_(backend),
      max_rows_(max_rows),
      num_slices_(NumVocabSlices(tp) / tp),
      slice_width_(VocabSlice(VocabSizes(vocab_size), tp, 0).size()),
      vocab_(VocabOf(VocabSizes(vocab_size), tp, tp_rank)) {}

absl::StatusOr<std::unique_ptr<DeviceSummarizer>> DeviceSummarizer::Create(Backend& backend,
                                                                           int64_t vocab_size,
                                                                           int tp, int tp_rank,
                                                                           int64_t max_rows) {
  LS_CHECK(backend.SummarizesLogits() && max_rows >= 1);
  std::unique_ptr<DeviceSummarizer> summarizer(
      new DeviceSummarizer(backend, vocab_size, tp, tp_rank, max_rows));
  RETURN_IF_ERROR(summarizer->Allocate());
  return summarizer;
}

int64_t DeviceSummarizer::ResultBytes(int num_slices, int64_t max_rows) {
  return max_rows * (LogitsSummaryBytes(num_slices, kMaxLargestLogits) +
                     LogitsSummaryBytes(num_slices, SamplingParams::kMaxLogprobs));
}

int64_t DeviceSummarizer::WorkspaceBytes(int64_t slice_width, int num_slices, int64_t max_rows) {
  const auto max_jobs = static_cast<int>(2 * max_rows);
  return LogitsWorkspaceBytes(slice_width, num_slices, max_jobs, kMaxLargestLogits);
}

int64_t DeviceSummarizer::DeviceBytes(int64_t vocab_size, int tp, int64_t max_rows) {
  const int num_slices = NumVocabSlices(tp) / tp;
  const int64_t slice_width = VocabSlice(VocabSizes(vocab_size), tp, 0).size();
  return ResultBytes(num_slices, max_rows) + WorkspaceBytes(slice_width, num_slices, max_rows);
}

absl::Status DeviceSummarizer::Allocate() {
  ASSIGN_OR_RETURN(results_, backend_.Allocate(ResultBytes(num_slices_, max_rows_)));
  ASSIGN_OR_RETURN(workspace_,
                   backend_.Allocate(WorkspaceBytes(slice_width_, num_slices_, max_rows_)));
  ASSIGN_OR_RETURN(host_row_, backend_.AllocateOnHost(vocab_.size() * int64_t{sizeof(float)}));
  raw_jobs_.reserve(static_cast<size_t>(max_rows_));
  processed_jobs_.reserve(static_cast<size_t>(max_rows_));
  adjustments_.reserve(static_cast<size_t>(kMaxAdjustments));
  return absl::OkStatus();
}

void DeviceSummarizer::Begin() {
  raw_jobs_.clear();
  processed_jobs_.clear();
  adjustments_.clear();
  max_largest_ = 0;
  raw_bytes_ = 0;
  processed_bytes_ = 0;
}

DeviceSummarizer::Offsets DeviceSummarizer::Add(int64_t index, const LogitsRow& row,
                                                const RowShape& shape,
                                                std::span<const int32_t> eos_token_ids) {
  LS_CHECK_LE(shape.num_top, SamplingParams::kMaxLogprobs);
  Offsets offsets;
  if (!shape.chooses || shape.wants_logprobs) offsets.raw = AddRaw(index, row, shape);
  if (shape.chooses) offsets.processed = AddChoice(index, row, shape, eos_token_ids);
  LS_CHECK_LE(std::max(std::ssize(raw_jobs_), std::ssize(processed_jobs_)), max_rows_);
  return offsets;
}

int64_t DeviceSummarizer::AddRaw(int64_t index, const LogitsRow& row, const RowShape& shape) {
  LogitsJob job = {.row = static_cast<int32_t>(index),
                   .num_largest = shape.num_top,
                   .told_index = -1,
                   .inverse_temperature = shape.wants_logprobs ? 1.0f : 0.0f};
  if (row.prompt_target >= vocab_.begin && row.prompt_target < vocab_.end) {
    job.told_index = static_cast<int32_t>(row.prompt_target - vocab_.begin);
  }
  return AddJob(job, raw_jobs_, raw_bytes_);
}

int64_t DeviceSummarizer::AddChoice(int64_t index, const LogitsRow& row, const RowShape& shape,
                                    std::span<const int32_t> eos_token_ids) {
  LogitsJob job = {.row = static_cast<int32_t>(index),
                   .num_largest = NumLargest(shape),
                   .told_index = vocab_.size() > 0 ? 0 : -1,
                   .inverse_temperature = shape.greedy ? 0.0f : InverseTemperature(*row.params)};
  if (shape.adjusted) {
    ListAdjustments(vocab_, OutputOf(row, eos_token_ids), adjustments_, job);
    job.uncounted = row.uncounted;
    LS_CHECK_LE(std::ssize(adjustments_), kMaxAdjustments);
  }
  return AddJob(job, processed_jobs_, processed_bytes_);
}

void DeviceSummarizer::Keep(int32_t kept, int32_t raw_kept) {
  processed_jobs_.back().kept = kept;
  if (raw_kept >= 0) raw_jobs_.back().kept = raw_kept;
}

int64_t DeviceSummarizer::AddJob(LogitsJob job, std::vector<LogitsJob>& jobs, int64_t& bytes) {
  const int64_t offset = bytes;
  job.out_offset = static_cast<int32_t>(offset);
  bytes += LogitsSummaryBytes(num_slices_, job.num_largest);
  max_largest_ = std::max(max_largest_, job.num_largest);
  jobs.push_back(job);
  return offset;
}

DeviceSummarizer::Packed DeviceSummarizer::Pack(DeviceInput& input, const ChosenToken* chosen,
                                                float* kept) {
  for (LogitsJob& job : processed_jobs_) job.out_offset += static_cast<int32_t>(raw_bytes_);
  const LogitsJob* jobs = input.Append(std::span<const LogitsJob>(raw_jobs_));
  input.Append(std::span<const LogitsJob>(processed_jobs_));
  return {.args = {.width = vocab_.size(),
                   .first_token = vocab_.begin,
                   .slice_width = slice_width_,
                   .num_slices = num_slices_,
                   .jobs = jobs,
                   .num_jobs = static_cast<int>(raw_jobs_.size() + processed_jobs_.size()),
                   .max_largest = max_largest_,
                   .adjustments = input.Append(std::span<const LogitAdjustment>(adjustments_)),
                   .chosen = chosen,
                   .workspace = workspace_.data(),
                   .out = results_.as<std::byte>(),
                   .kept = kept},
          .raw_bytes = raw_bytes_,
          .bytes = raw_bytes_ + processed_bytes_};
}

void DeviceSummarizer::Issue(const Packed& group, const float* logits) {
  LogitsSummaryArgs args = group.args;
  args.logits = logits;
  backend_.SummarizeLogits(args);
}

void DeviceSummarizer::FillRaw(const std::byte* bytes, const RowShape& shape, int64_t first_token,
                               RowRecord& record) const {
  const Result result = ResultAt(bytes, num_slices_);
  if (record.target_logit != nullptr) *record.target_logit = result.summary.told;
  if (!shape.wants_logprobs) return;
  CopyStats(result.slices, record.raw_stats);
  *record.top_header = {.count = result.summary.count, .cut = 0};
  for (size_t i = 0; i < result.largest.size(); ++i) {
    record.top[i] = {.value = result.largest[i].value,
                     .token = static_cast<int32_t>(first_token) + result.largest[i].index};
  }
}

std::span<const float> DeviceSummarizer::Fetch(const float* logits, int64_t index) {
  const int64_t bytes = vocab_.size() * int64_t{sizeof(float)};
  if (bytes > 0) {
    backend_.CopyToHost(host_row_.data(), logits + index * vocab_.size(), bytes);
  }
  return {host_row_.as<float>(), static_cast<size_t>(vocab_.size())};
}

}  // namespace lockstep
