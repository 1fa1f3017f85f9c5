#include "model/sampling/choice_groups.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace lockstep {

namespace {

int64_t GroupRows(const ChoiceGroups::Options& options) {
  return std::min(options.max_rows, options.limits.rows);
}

int64_t InputBytes(const ChoiceGroups::Options& options) {
  // Places that are nobody's, and what alignment costs, in every group.
  const int64_t bytes_of_group = options.tp * int64_t{sizeof(int32_t)} + 8;
  return DeviceSummarizer::InputBytes(options.max_rows) +
         options.max_rows *
             (int64_t{sizeof(TokenChoiceJob)} + int64_t{sizeof(int32_t)} + bytes_of_group) +
         DeviceSummarizer::kMaxAdjustments * int64_t{sizeof(LogitAdjustment)};
}

}  // namespace

int64_t ChoiceGroups::DeviceBytes(const Options& options) {
  return DeviceSummarizer::DeviceBytes(options.vocab_size, options.tp, GroupRows(options)) +
         InputBytes(options);
}

absl::StatusOr<std::unique_ptr<ChoiceGroups>> ChoiceGroups::Create(Backend& backend,
                                                                   const Options& options) {
  std::unique_ptr<ChoiceGroups> groups(new ChoiceGroups(options));
  const int64_t max_rows = options.max_rows;
  const int64_t group_rows = GroupRows(options);
  ASSIGN_OR_RETURN(groups->summaries_,
                   DeviceSummarizer::Create(backend, options.vocab_size, options.tp,
                                            options.tp_rank, group_rows));
  ASSIGN_OR_RETURN(DeviceInput input, DeviceInput::Create(backend, InputBytes(options)));
  groups->input_ = std::make_unique<DeviceInput>(std::move(input));
  groups->rows_.reserve(static_cast<size_t>(max_rows));
  groups->groups_.reserve(static_cast<size_t>(max_rows));
  groups->jobs_.reserve(static_cast<size_t>(group_rows));
  groups->kept_places_.reserve(static_cast<size_t>(group_rows));
  groups->places_.reserve(static_cast<size_t>(group_rows + options.tp));
  return groups;
}

int64_t ChoiceGroups::NumAdjustments(const LogitsRow& row, const RowShape& shape,
                                     std::span<const int32_t> eos_token_ids) const {
  if (!shape.chooses || !shape.adjusted) return 0;
  return MostAdjustments(OutputOf(row, eos_token_ids), summaries_->part_width());
}

bool ChoiceGroups::TakesRow(const LogitsRow& row, const RowShape& shape,
                            std::span<const int32_t> eos_token_ids) const {
  return NumAdjustments(row, shape, eos_token_ids) <= DeviceSummarizer::kMaxAdjustments;
}

void ChoiceGroups::Begin(const ChoiceRows& rows, const Memory& memory) {
  LS_CHECK_LE(std::ssize(rows.rows), options_.max_rows);
  LS_CHECK_EQ(rows.rows.size(), rows.shapes.size());
  call_ = rows;
  memory_ = memory;
  next_ = 0;
  rows_.clear();
  num_choosing_ = 0;
  took_all_ = true;
  raw_end_ = 0;
}

std::span<const ChoiceGroup> ChoiceGroups::PackNext() {
  groups_.clear();
  input_->Clear();
  num_adjustments_ = 0;
  while (next_ < std::ssize(call_.rows) && FitsInput(next_)) groups_.push_back(PackGroup());
  if (!groups_.empty()) input_->Upload();
  return groups_;
}

int64_t ChoiceGroups::TileEnd(int64_t row) const {
  const int64_t end = row / memory_.tile_rows * memory_.tile_rows + memory_.tile_rows;
  return std::min({end, row + options_.limits.rows, static_cast<int64_t>(call_.rows.size())});
}

// Always into one that is empty: TakesRow, or there are none.
bool ChoiceGroups::FitsInput(int64_t row) const {
  const auto i = static_cast<size_t>(row);
  const int64_t num = NumAdjustments(call_.rows[i], call_.shapes[i], call_.eos_token_ids);
  return num > DeviceSummarizer::kMaxAdjustments ||
         num_adjustments_ + num <= DeviceSummarizer::kMaxAdjustments;
}

bool ChoiceGroups::FitsGroup(int64_t row) const {
  return num_kept_[static_cast<size_t>(NextOwner())] + NumKept(row) <= options_.limits.kept_rows;
}

// Of rows [first, end).
bool ChoiceGroups::CanGatherKept(int64_t first, int64_t end) const {
  int64_t num_rows = 0;
  for (int64_t row = first; row < end; ++row) num_rows += NumKept(row);
  const int64_t row_bytes = summaries_->part_width() * int64_t{sizeof(float)};
  return options_.tp > 1 && num_rows <= options_.limits.kept_rows &&
         num_rows * row_bytes <= options_.limits.gathered_bytes;
}

ChoiceGroup ChoiceGroups::PackGroup() {
  summaries_->Begin();
  jobs_.clear();
  kept_places_.clear();
  std::fill(num_kept_.begin(), num_kept_.end(), 0);
  const int64_t first = next_;
  const int64_t end = TileEnd(first);
  gathers_kept_ = CanGatherKept(first, end);
  do {
    AddRow(next_++);
  } while (next_ < end && FitsInput(next_) && FitsGroup(next_));
  ChoiceGroup group = {.rows = {first, next_},
                       .summaries = summaries_->Pack(*input_, memory_.chosen, memory_.kept),
                       .raw_offset = raw_end_,
                       .jobs = input_->Append(std::span<const TokenChoiceJob>(jobs_)),
                       .num_jobs = static_cast<int>(jobs_.size()),
                       .goes_on_here = std::any_of(jobs_.begin(), jobs_.end(),
                                                   [](const auto& job) { return job.row >= 0; }),
                       .kept_rows = *std::max_element(num_kept_.begin(), num_kept_.end()),
                       .gathers_kept = gathers_kept_};
  if (!kept_places_.empty()) PackPlaces(group);
  for (int64_t i = first; i < next_; ++i) {
    Row& row = rows_[static_cast<size_t>(i)];
    if (row.raw_offset >= 0) row.raw_offset += raw_end_;
    row.raw_stride = group.summaries.raw_bytes;
  }
  raw_end_ += options_.tp * group.summaries.raw_bytes;
  return group;
}

void ChoiceGroups::AddRow(int64_t index) {
  const LogitsRow& row = call_.rows[static_cast<size_t>(index)];
  const RowShape& shape = call_.shapes[static_cast<size_t>(index)];
  Row& added = rows_.emplace_back();
  const int32_t place = shape.chooses ? num_choosing_++ : -1;
  const int64_t num_adjustments = NumAdjustments(row, shape, call_.eos_token_ids);
  if (num_adjustments > DeviceSummarizer::kMaxAdjustments) {  // not TakesRow
    took_all_ = false;
    return;
  }
  num_adjustments_ += num_adjustments;
  const DeviceSummarizer::Offsets offsets =
      summaries_->Add(index % memory_.tile_rows, row, shape, call_.eos_token_ids);
  added.place = place;
  added.raw_offset = offsets.raw;
  if (shape.chooses) AddJob(index, offsets);
}

void ChoiceGroups::AddJob(int64_t index, const DeviceSummarizer::Offsets& offsets) {
  const LogitsRow& row = call_.rows[static_cast<size_t>(index)];
  const RowShape& shape = call_.shapes[static_cast<size_t>(index)];
  const SamplingParams& params = *row.params;
  const int64_t num_kept = NumKept(index);
  TokenChoiceJob& job = jobs_.emplace_back(
      TokenChoiceJob{.summary = static_cast<int32_t>(offsets.processed),
                     .num_largest = DeviceSummarizer::NumLargest(shape),
                     .inverse_temperature = shape.greedy ? 0.0f : InverseTemperature(params),
                     .top_k = params.top_k,
                     .top_p = params.top_p,
                     .min_p = params.min_p,
                     .seed = params.seed,
                     .position = row.position,
                     .sequence_index = row.sequence_index,
                     .place = rows_.back().place});
  if (num_kept > 0) {
    Keep(num_kept, job);
  } else if (MayGoOn(index)) {
    job.row = static_cast<int32_t>(index % memory_.tile_rows);
  }
}

// Whether the walk may go on where a list that was cut ends, or there is none.
bool ChoiceGroups::MayGoOn(int64_t index) const {
  const RowShape& shape = call_.shapes[static_cast<size_t>(index)];
  if (!shape.chooses || shape.greedy) return false;
  const int32_t num_largest = DeviceSummarizer::NumLargest(shape);
  if (int64_t{num_largest} * options_.tp > kMaxChoiceCandidates) return true;
  const bool are_whole = num_largest >= std::min(summaries_->part_width(), options_.vocab_size) &&
                         options_.vocab_size <= kMaxChoiceSteps;
  return !are_whole && num_largest != call_.rows[static_cast<size_t>(index)].params->top_k;
}

int64_t ChoiceGroups::NumKept(int64_t index) const {
  const RowShape& shape = call_.shapes[static_cast<size_t>(index)];
  if (!MayGoOn(index) || (options_.tp == 1 && !shape.adjusted)) return 0;
  return shape.adjusted && shape.wants_logprobs ? 2 : 1;
}

void ChoiceGroups::Keep(int64_t num_kept, TokenChoiceJob& job) {
  const int owner = NextOwner();
  int64_t& num_of_owner = num_kept_[static_cast<size_t>(owner)];
  const auto kept = static_cast<int32_t>(num_of_owner);
  const int32_t raw_kept = num_kept > 1 ? kept + 1 : -1;
  const auto first_of_owner = static_cast<int32_t>(owner * options_.limits.kept_rows);
  num_of_owner += num_kept;
  summaries_->Keep(first_of_owner + kept, raw_kept >= 0 ? first_of_owner + raw_kept : -1);
  const bool is_dealt_out = options_.tp > 1 && !gathers_kept_;
  if (is_dealt_out) kept_places_.push_back(job.place);
  if (is_dealt_out && owner != options_.tp_rank) return;
  job.kept_row = kept;
  job.kept_raw_row = raw_kept;
}

void ChoiceGroups::PackPlaces(ChoiceGroup& group) {
  const int tp = options_.tp;
  const auto count = static_cast<int64_t>(kept_places_.size());
  group.num_shared = (count + tp - 1) / tp;
  places_.clear();
  int64_t nobodys = options_.max_rows;
  for (int rank = 0; rank < tp; ++rank) {
    for (int64_t i = rank; i < group.num_shared * tp; i += tp) {
      places_.push_back(i < count ? kept_places_[static_cast<size_t>(i)]
                                  : static_cast<int32_t>(nobodys++));
    }
  }
  group.places = input_->Append(std::span<const int32_t>(places_));
}

}  // namespace lockstep
