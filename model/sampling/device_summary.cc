#include "model/sampling/device_summary.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace lockstep {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();

constexpr int kJobsPerRow = 2;  // what is chosen from, and the model's own probabilities

ShardedSizes VocabOnly(int64_t vocab_size) {
  ShardedSizes sizes;
  sizes.vocab_size = vocab_size;
  return sizes;
}

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
      slice_width_(VocabSlice(VocabOnly(vocab_size), tp, 0).size()),
      vocab_(VocabOf(VocabOnly(vocab_size), tp, tp_rank)) {}

absl::StatusOr<std::unique_ptr<DeviceSummarizer>> DeviceSummarizer::Create(Backend& backend,
                                                                           int64_t vocab_size,
                                                                           int tp, int tp_rank,
                                                                           int64_t max_rows) {
  LS_CHECK(backend.SummarizesLogits() && max_rows >= 1);
  std::unique_ptr<DeviceSummarizer> summarizer(
      new DeviceSummarizer(backend, vocab_size, tp, tp_rank, max_rows));
  RETURN_IF_ERROR(summarizer->Allocate());
  RETURN_IF_ERROR(summarizer->WarmUp());
  return summarizer;
}

absl::Status DeviceSummarizer::Allocate() {
  const int64_t max_jobs = max_rows_ * kJobsPerRow;
  const int64_t input_bytes = max_jobs * int64_t{sizeof(LogitsJob)} + max_rows_ * kMaxBytesBeside +
                              kMaxAdjustments * int64_t{sizeof(LogitAdjustment)};
  const int64_t result_bytes =
      max_rows_ * (LogitsSummaryBytes(num_slices_, kMaxLargestLogits) +
                   LogitsSummaryBytes(num_slices_, SamplingParams::kMaxLogprobs));
  const int64_t workspace_bytes = LogitsWorkspaceBytes(
      slice_width_, num_slices_, static_cast<int>(max_jobs), kMaxLargestLogits);
  ASSIGN_OR_RETURN(input_, backend_.Allocate(input_bytes));
  ASSIGN_OR_RETURN(results_, backend_.Allocate(result_bytes));
  ASSIGN_OR_RETURN(workspace_, backend_.Allocate(workspace_bytes));
  ASSIGN_OR_RETURN(host_results_, backend_.AllocateOnHost(result_bytes));
  ASSIGN_OR_RETURN(host_row_, backend_.AllocateOnHost(vocab_.size() * int64_t{sizeof(float)}));
  raw_jobs_.reserve(static_cast<size_t>(max_rows_));
  processed_jobs_.reserve(static_cast<size_t>(max_rows_));
  adjustments_.reserve(static_cast<size_t>(kMaxAdjustments));
  host_input_.reserve(static_cast<size_t>(input_bytes));
  offsets_.resize(static_cast<size_t>(max_rows_));
  return absl::OkStatus();
}

// Kernels may be loaded when they are first used.
absl::Status DeviceSummarizer::WarmUp() {
  ASSIGN_OR_RETURN(const DeviceBuffer row,
                   backend_.Allocate(vocab_.size() * int64_t{sizeof(float)}));
  Begin(row.as<float>());
  AddJob({.told_index = -1}, raw_jobs_, raw_bytes_);
  Issue();
  backend_.Synchronize();
  return absl::OkStatus();
}

void DeviceSummarizer::Begin(const float* logits, const ChosenToken* chosen) {
  logits_ = logits;
  chosen_ = chosen;
  raw_jobs_.clear();
  processed_jobs_.clear();
  adjustments_.clear();
  std::fill(offsets_.begin(), offsets_.end(), Offsets{});
  max_largest_ = 0;
  raw_bytes_ = 0;
  processed_bytes_ = 0;
}

bool DeviceSummarizer::Add(int64_t index, const LogitsRow& row, const RowShape& shape,
                           std::span<const int32_t> eos_token_ids) {
  LS_CHECK(index >= 0 && index < max_rows_) << "row " << index << " of " << max_rows_;
  LS_CHECK_LE(shape.num_top, SamplingParams::kMaxLogprobs);
  if (!shape.chooses || shape.wants_logprobs) AddRaw(index, row, shape);
  return !shape.chooses || AddChoice(index, row, shape, eos_token_ids);
}

void DeviceSummarizer::AddRaw(int64_t index, const LogitsRow& row, const RowShape& shape) {
  LogitsJob job = {.row = static_cast<int32_t>(index),
                   .num_largest = shape.num_top,
                   .told_index = -1,
                   .inverse_temperature = shape.wants_logprobs ? 1.0f : 0.0f};
  if (row.prompt_target >= vocab_.begin && row.prompt_target < vocab_.end) {
    job.told_index = static_cast<int32_t>(row.prompt_target - vocab_.begin);
  }
  offsets_[static_cast<size_t>(index)].raw = AddJob(job, raw_jobs_, raw_bytes_);
}

// Results of all ranks are laid out alike, so that a rank that has no room for the adjustments
// leaves its own empty.
bool DeviceSummarizer::AddChoice(int64_t index, const LogitsRow& row, const RowShape& shape,
                                 std::span<const int32_t> eos_token_ids) {
  LogitsJob job = {.row = static_cast<int32_t>(index),
                   .num_largest = NumLargest(shape),
                   .told_index = vocab_.size() > 0 ? 0 : -1,
                   .inverse_temperature = shape.greedy ? 0.0f : InverseTemperature(*row.params)};
  const size_t num_before = adjustments_.size();
  if (shape.adjusted) {
    ListAdjustments(vocab_, *row.params, *row.history, row.num_output_tokens, eos_token_ids,
                    adjustments_, job);
    job.uncounted = row.uncounted;
  }
  const bool fits = adjustments_.size() <= static_cast<size_t>(kMaxAdjustments);
  if (!fits) {
    adjustments_.resize(num_before);
    job = {.row = -1, .num_largest = NumLargest(shape)};
  }
  const int64_t offset = AddJob(job, processed_jobs_, processed_bytes_);
  offsets_[static_cast<size_t>(index)].processed = offset;
  return fits;
}

void DeviceSummarizer::Keep(int32_t kept, int32_t raw_kept) {
  processed_jobs_.back().kept = kept;
  if (raw_kept >= 0) raw_jobs_.back().kept = raw_kept;
}

void DeviceSummarizer::KeepNone() {
  for (LogitsJob& job : processed_jobs_) job.kept = -1;
  for (LogitsJob& job : raw_jobs_) job.kept = -1;
}

int64_t DeviceSummarizer::AddJob(LogitsJob job, std::vector<LogitsJob>& jobs, int64_t& bytes) {
  const int64_t offset = bytes;
  job.out_offset = static_cast<int32_t>(offset);
  bytes += LogitsSummaryBytes(num_slices_, job.num_largest);
  max_largest_ = std::max(max_largest_, job.num_largest);
  jobs.push_back(job);
  return offset;
}

template <typename T>
const std::byte* DeviceSummarizer::Append(std::span<const T> values) {
  const std::byte* device = input_.as<std::byte>() + host_input_.size();
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  host_input_.insert(host_input_.end(), bytes, bytes + values.size_bytes());
  LS_CHECK_LE(static_cast<int64_t>(host_input_.size()), input_.bytes());
  return device;
}

const std::byte* DeviceSummarizer::Issue(std::span<const std::byte> beside, float* kept) {
  for (LogitsJob& job : processed_jobs_) job.out_offset += static_cast<int32_t>(raw_bytes_);
  host_input_.clear();
  const std::byte* beside_on_device = Append(beside);
  const std::byte* jobs = Append(std::span<const LogitsJob>(raw_jobs_));
  Append(std::span<const LogitsJob>(processed_jobs_));
  const std::byte* adjustments = Append(std::span<const LogitAdjustment>(adjustments_));
  backend_.CopyToDevice(input_.data(), host_input_.data(),
                        static_cast<int64_t>(host_input_.size()));
  backend_.SummarizeLogits({.logits = logits_,
                            .width = vocab_.size(),
                            .first_token = vocab_.begin,
                            .slice_width = slice_width_,
                            .num_slices = num_slices_,
                            .jobs = reinterpret_cast<const LogitsJob*>(jobs),
                            .num_jobs = static_cast<int>(raw_jobs_.size() + processed_jobs_.size()),
                            .max_largest = max_largest_,
                            .adjustments = reinterpret_cast<const LogitAdjustment*>(adjustments),
                            .chosen = chosen_,
                            .workspace = workspace_.data(),
                            .out = results_.as<std::byte>(),
                            .kept = kept});
  return beside_on_device;
}

void DeviceSummarizer::Read() {
  backend_.CopyToHost(host_results_.data(), results_.data(), result_bytes());
}

void DeviceSummarizer::Fill(int64_t index, const RowShape& shape, RowRecord& record) const {
  const Offsets& of_row = offsets(index);
  const std::byte* results = host_results_.as<std::byte>();
  if (of_row.processed >= 0) FillChoice(results + raw_bytes_ + of_row.processed, shape, record);
  if (of_row.raw >= 0) FillRaw(results + of_row.raw, shape, vocab_.begin, record);
}

void DeviceSummarizer::FillChoice(const std::byte* bytes, const RowShape& shape,
                                  RowRecord& record) const {
  const Result result = ResultAt(bytes, num_slices_);
  const auto first = static_cast<int32_t>(vocab_.begin);
  CopyStats(result.slices, record.processed_stats);
  int32_t count = 0;
  for (const LargestLogit& largest : result.largest) {
    record.candidates[count] = {.value = largest.value, .token = first + largest.index};
    if (!record.raw_values.empty()) record.raw_values[count] = largest.raw;
    ++count;
  }
  record.candidate_header->cut = count == NumLargest(shape) && count < vocab_.size();
  // Token 0 is chosen when nothing else can be: its raw logit must be known.
  if (count == 0 && first == 0) {
    record.candidates[0] = {.value = kNegInf, .token = 0};
    if (!record.raw_values.empty()) record.raw_values[0] = result.summary.told;
    count = 1;
  }
  record.candidate_header->count = count;
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

std::span<const float> DeviceSummarizer::Fetch(int64_t index) {
  const int64_t bytes = vocab_.size() * int64_t{sizeof(float)};
  if (bytes > 0) {
    backend_.CopyToHost(host_row_.data(), logits_ + index * vocab_.size(), bytes);
  }
  return {host_row_.as<float>(), static_cast<size_t>(vocab_.size())};
}

}  // namespace lockstep
