#include "model/sampling/device_choice.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace lockstep {
namespace {

static_assert(sizeof(TokenChoiceJob) <= DeviceSummarizer::kMaxBytesBeside);
static_assert(sizeof(TokenChoiceJob) % 8 == 0 && sizeof(ChosenToken) % 8 == 0);

}  // namespace

DeviceChooser::DeviceChooser(Backend& backend, int64_t vocab_size, Communicator& tp,
                             int64_t max_rows, std::function<absl::Status()> health)
    : backend_(backend),
      tp_(tp),
      health_(std::move(health)),
      vocab_size_(vocab_size),
      max_rows_(max_rows) {}

absl::StatusOr<std::unique_ptr<DeviceChooser>> DeviceChooser::Create(
    Backend& backend, int64_t vocab_size, Communicator& tp, int64_t max_rows,
    std::function<absl::Status()> health) {
  std::unique_ptr<DeviceChooser> chooser(
      new DeviceChooser(backend, vocab_size, tp, max_rows, std::move(health)));
  ASSIGN_OR_RETURN(chooser->summaries_,
                   DeviceSummarizer::Create(backend, vocab_size, tp.size(), tp.rank(), max_rows));
  RETURN_IF_ERROR(chooser->Allocate());
  return chooser;
}

absl::Status DeviceChooser::Allocate() {
  const int num_slices = summaries_->num_slices();
  const int64_t raw_bytes =
      max_rows_ * LogitsSummaryBytes(num_slices, SamplingParams::kMaxLogprobs);
  const int64_t chosen_bytes = max_rows_ * int64_t{sizeof(ChosenToken)};
  ASSIGN_OR_RETURN(chosen_, backend_.Allocate(chosen_bytes));
  RETURN_IF_ERROR(AllocateForRanks());
  for (Call& call : calls_) {
    ASSIGN_OR_RETURN(call.results, backend_.AllocateOnHost(chosen_bytes + tp_.size() * raw_bytes));
    ASSIGN_OR_RETURN(call.mark, backend_.MakeMark());
    call.rows.reserve(static_cast<size_t>(max_rows_));
  }
  rows_.reserve(static_cast<size_t>(max_rows_));
  jobs_.reserve(static_cast<size_t>(max_rows_));
  has_summary_.reserve(static_cast<size_t>(max_rows_));
  return absl::OkStatus();
}

// What all ranks give.
absl::Status DeviceChooser::AllocateForRanks() {
  ASSIGN_OR_RETURN(kept_, backend_.Allocate(tp_.size() * kMaxKeptRows * summaries_->part_width() *
                                            int64_t{sizeof(float)}));
  if (tp_.size() == 1) return absl::OkStatus();
  const int num_slices = summaries_->num_slices();
  const int64_t row_bytes = LogitsSummaryBytes(num_slices, SamplingParams::kMaxLogprobs) +
                            LogitsSummaryBytes(num_slices, kMaxLargestLogits);
  ASSIGN_OR_RETURN(gathered_, backend_.Allocate(tp_.size() * max_rows_ * row_bytes));
  return absl::OkStatus();
}

DeviceChooser::Call& DeviceChooser::oldest() {
  LS_CHECK(num_done_ < num_issued_) << "no call is in flight";
  return call(num_done_);
}

void DeviceChooser::Begin(const float* logits) {
  LS_CHECK(num_issued_ - num_done_ < kMaxInFlight) << "too many calls in flight";
  summaries_->Begin(logits, chosen_on_device());
  logits_ = logits;
  rows_.clear();
  jobs_.clear();
  has_summary_.clear();
  num_choosing_ = 0;
  num_kept_ = 0;
  most_adjustments_ = 0;
  decides_all_ = true;
}

void DeviceChooser::Add(const LogitsRow& row, const RowShape& shape,
                        std::span<const int32_t> eos_token_ids) {
  const auto index = static_cast<int64_t>(rows_.size());
  has_summary_.push_back(summaries_->Add(index, row, shape, eos_token_ids));
  Row& added = rows_.emplace_back(Row{.place = -1, .raw_offset = summaries_->offsets(index).raw});
  if (!shape.chooses) return;
  added.place = num_choosing_++;
  AddJob(index, row, shape, added.place);
  const bool fits = FitsAdjustments(row, shape, eos_token_ids);
  decides_all_ = decides_all_ && fits && (!MayGoOn(row, shape) || LetGoOn(index, shape));
}

void DeviceChooser::AddJob(int64_t index, const LogitsRow& row, const RowShape& shape,
                           int32_t place) {
  const SamplingParams& params = *row.params;
  jobs_.push_back({.summary = static_cast<int32_t>(summaries_->offsets(index).processed),
                   .num_largest = DeviceSummarizer::NumLargest(shape),
                   .inverse_temperature = shape.greedy ? 0.0f : InverseTemperature(params),
                   .top_k = params.top_k,
                   .top_p = params.top_p,
                   .min_p = params.min_p,
                   .seed = params.seed,
                   .position = row.position,
                   .sequence_index = row.sequence_index,
                   .place = place});
}

// A rank that has no room leaves its rows without a summary.
bool DeviceChooser::FitsAdjustments(const LogitsRow& row, const RowShape& shape,
                                    std::span<const int32_t> eos_token_ids) {
  if (!shape.adjusted) return true;
  most_adjustments_ +=
      MostAdjustments(*row.params, static_cast<int64_t>(row.position), eos_token_ids);
  return most_adjustments_ <= DeviceSummarizer::kMaxAdjustments;
}

// The walk ends before a list that was cut does, or there is none.
bool DeviceChooser::MayGoOn(const LogitsRow& row, const RowShape& shape) const {
  if (shape.greedy) return false;
  const int32_t num_largest = DeviceSummarizer::NumLargest(shape);
  if (int64_t{num_largest} * tp_.size() > kMaxChoiceCandidates) return true;
  const bool are_whole = num_largest >= std::min(summaries_->part_width(), vocab_size_) &&
                         vocab_size_ <= kMaxChoiceSteps;
  return !are_whole && num_largest != row.params->top_k;
}

bool DeviceChooser::LetGoOn(int64_t index, const RowShape& shape) {
  TokenChoiceJob& job = jobs_.back();
  if (tp_.size() == 1 && !shape.adjusted) {
    job.row = static_cast<int32_t>(index);
    return true;
  }
  const bool keeps_raw = shape.adjusted && shape.wants_logprobs;
  if (num_kept_ + (keeps_raw ? 2 : 1) > kMaxKeptRows) return false;
  job.kept_row = num_kept_++;
  if (keeps_raw) job.kept_raw_row = num_kept_++;
  summaries_->Keep(job.kept_row, job.kept_raw_row);
  return true;
}

void DeviceChooser::KeepNone() {
  for (TokenChoiceJob& job : jobs_) job.kept_row = job.kept_raw_row = -1;
  summaries_->KeepNone();
  num_kept_ = 0;
}

absl::StatusOr<const std::byte*> DeviceChooser::GatherSummaries() {
  const int64_t bytes = summaries_->result_bytes();
  if (tp_.size() == 1 || bytes == 0) return summaries_->results();
  RETURN_IF_ERROR(tp_.AllGather(summaries_->results(), bytes, gathered_.data()));
  return gathered_.as<std::byte>();
}

absl::Status DeviceChooser::GatherKept() {
  if (tp_.size() == 1 || num_kept_ == 0) return absl::OkStatus();
  const int64_t bytes = num_kept_ * summaries_->part_width() * int64_t{sizeof(float)};
  return tp_.AllGather(kept_here(), bytes, kept_.data());
}

void DeviceChooser::StartCopies(Call& call, const std::byte* summaries) {
  backend_.StartCopyToHost(call.results.data(), chosen_.data(),
                           num_choosing_ * int64_t{sizeof(ChosenToken)});
  auto* raw = call.results.as<std::byte>() + max_rows_ * int64_t{sizeof(ChosenToken)};
  call.raw_bytes = summaries_->raw_bytes();
  for (int rank = 0; rank < tp_.size(); ++rank) {
    backend_.StartCopyToHost(raw + rank * call.raw_bytes,
                             summaries + rank * summaries_->result_bytes(), call.raw_bytes);
  }
}

absl::Status DeviceChooser::Issue() {
  if (!decides_all_) KeepNone();  // the host reads them at once anyway
  const bool any_here =
      std::any_of(jobs_.begin(), jobs_.end(), [](const auto& job) { return job.row >= 0; });
  const std::byte* jobs = summaries_->Issue(std::as_bytes(std::span(jobs_)), kept_here());
  ASSIGN_OR_RETURN(const std::byte* summaries, GatherSummaries());
  RETURN_IF_ERROR(GatherKept());
  backend_.ChooseTokens({.summaries = summaries + summaries_->raw_bytes(),
                         .rank_stride = summaries_->result_bytes(),
                         .num_ranks = tp_.size(),
                         .num_slices = summaries_->num_slices(),
                         .part_width = summaries_->part_width(),
                         .vocab_size = vocab_size_,
                         .jobs = reinterpret_cast<const TokenChoiceJob*>(jobs),
                         .num_jobs = static_cast<int>(jobs_.size()),
                         .logits = any_here ? logits_ : nullptr,
                         .kept = num_kept_ > 0 ? kept_.as<float>() : nullptr,
                         .kept_rows = num_kept_,
                         .chosen = chosen_.as<ChosenToken>()});
  Call& issued = call(num_issued_++);
  issued.rows = rows_;
  StartCopies(issued, summaries);
  issued.mark->Set();
  return absl::OkStatus();
}

absl::Status DeviceChooser::Wait() {
  oldest().mark->WaitUntilReached();
  ++num_done_;
  return health_ == nullptr ? absl::OkStatus() : health_();
}

std::optional<ChosenToken> DeviceChooser::Chosen(int64_t index) const {
  const Call& done = calls_[static_cast<size_t>((num_done_ - 1) % kMaxInFlight)];
  const int32_t place = done.rows[static_cast<size_t>(index)].place;
  if (place < 0) return std::nullopt;
  const ChosenToken chosen = done.results.as<ChosenToken>()[place];
  if (chosen.token == kUndecidedToken) return std::nullopt;
  return chosen;
}

const std::byte* DeviceChooser::RawResult(int64_t index, int rank) const {
  const Call& done = calls_[static_cast<size_t>((num_done_ - 1) % kMaxInFlight)];
  const int64_t offset = done.rows[static_cast<size_t>(index)].raw_offset;
  if (offset < 0) return nullptr;
  return done.results.as<std::byte>() + max_rows_ * int64_t{sizeof(ChosenToken)} +
         rank * done.raw_bytes + offset;
}

}  // namespace lockstep
