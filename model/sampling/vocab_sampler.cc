#include "model/sampling/vocab_sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/choice_walk.h"
#include "kernels/base/philox.h"
#include "kernels/base/status_macros.h"
#include "model/sampling/device_choice.h"
#include "model/sampling/row_kernels.h"
#include "model/sampling/row_stats.h"
#include "model/sampling/row_summary.h"
#include "model/sampling/token_choice.h"

namespace lockstep {
namespace {

constexpr double kLowestLogit = -std::numeric_limits<double>::infinity();

std::vector<Range> SlicesOf(const ShardedSizes& sizes, int tp, int tp_rank) {
  const int per_rank = NumVocabSlices(tp) / tp;
  std::vector<Range> slices;
  for (int i = 0; i < per_rank; ++i) {
    slices.push_back(VocabSlice(sizes, tp, tp_rank * per_rank + i));
  }
  return slices;
}

ChoiceRule RuleOf(const LogitsRow& row, const RowStats& processed) {
  const SamplingParams& params = *row.params;
  return {.inverse_temperature = InverseTemperature(params),
          .top_k = params.top_k,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .uniform = TokenUniform(params.seed, row.sequence_index, row.position),
          .max = processed.max,
          .total = processed.sum};
}

}  // namespace

class VocabSampler::Impl {
 public:
  Impl(SamplerOptions options, Communicator& tp, DeviceChooser* device)
      : options_(std::move(options)),
        tp_(tp),
        device_(device),
        sizes_(VocabSizes(options_.vocab_size)),
        vocab_(VocabOf(sizes_, tp.size(), tp.rank())),
        num_slices_(NumVocabSlices(tp.size()) / tp.size()),
        summarizer_(vocab_, SlicesOf(sizes_, tp.size(), tp.rank()), options_.eos_token_ids) {
    LS_CHECK(options_.vocab_size >= 1 && options_.num_candidates >= 1);
    if (device_ != nullptr) device_->Forget();
  }

  absl::Status ChooseOnHost(std::span<const LogitsRow> rows, const float* logits,
                            std::vector<RowOutcome>& outcomes);
  absl::Status Begin(std::span<const LogitsRow> rows, const LogitsTiles& tiles);
  bool WouldDecideAll(std::span<const LogitsRow> rows);
  absl::Status Finish(std::vector<RowOutcome>& outcomes);
  DeviceChooser* device() const { return device_; }
  Range vocab() const { return vocab_; }
  int64_t num_whole_rows_gathered() const { return num_whole_rows_gathered_; }

 private:
  // One row of the call: its shape and where its record begins in every rank's message.
  struct Placed {
    RowShape shape;
    int64_t offset = 0;
  };
  // Rows whose choice a device has begun.
  struct Begun {
    std::vector<LogitsRow> rows;
    std::vector<RowShape> shapes;
    const float* logits = nullptr;  // of the last tile
  };

  // The rest is about rows `indices` of a call, the first of which is placed_[0], and so on.
  absl::Status ChooseRows(std::span<const LogitsRow> rows, std::span<const size_t> indices,
                          const float* logits, std::vector<RowOutcome>& outcomes);
  void Place(std::span<const LogitsRow> rows, std::span<const size_t> indices);
  void Summarize(std::span<const LogitsRow> rows, std::span<const size_t> indices,
                 const float* logits);
  absl::Status ChooseRow(const LogitsRow& row, size_t index, const Placed& placed,
                         const float* logits, RowOutcome& outcome);
  RowRecord Record(const Placed& placed, int rank);
  RowStats Combine(const Placed& placed, std::span<SliceStats> RowRecord::*stats,
                   float inverse_temperature);
  void FindShapes(std::span<const LogitsRow> rows, std::vector<RowShape>& shapes) const;
  // False: the host must choose.
  bool FinishRow(const Begun& begun, size_t index, RowOutcome& outcome);
  // The one row placed is this; raw results only.
  Placed PlaceRawResults(const RowShape& shape, size_t index);

  // nullopt: the candidates do not reach far enough.
  std::optional<int32_t> ChooseFromCandidates(const LogitsRow& row, const Placed& placed);
  double RawLogitOf(int32_t token, const Placed& placed);
  double TargetLogit(const Placed& placed);
  void FillLogprobs(double logit, const Placed& placed, RowOutcome& outcome);
  // Gathers the row's logits and chooses from all of them.
  absl::Status ChooseFromWholeRow(const LogitsRow& row, const Placed& placed,
                                  std::span<const float> logits, RowOutcome& outcome);
  absl::Status GatherRow(std::span<const float> mine, std::vector<float>& whole);
  // On the host, until the next call.
  std::span<const float> RowOf(const float* logits, size_t index) const {
    const auto row = static_cast<int64_t>(index);
    if (device_ != nullptr) return device_->summaries().Fetch(logits, row);
    return {logits + row * vocab_.size(), static_cast<size_t>(vocab_.size())};
  }

  SamplerOptions options_;
  Communicator& tp_;
  DeviceChooser* const device_;  // null: logits are in the host's memory
  ShardedSizes sizes_;
  Range vocab_;
  int num_slices_;  // of one rank
  RowSummarizer summarizer_;
  int64_t num_whole_rows_gathered_ = 0;
  std::array<Begun, DeviceChooser::kMaxInFlight> begun_;
  int64_t num_begun_ = 0;
  int64_t num_finished_ = 0;

  // Reused from call to call.
  std::vector<RowShape> shapes_;
  std::vector<Placed> placed_;
  std::vector<size_t> indices_;
  int64_t message_bytes_ = 0;
  std::vector<std::byte> messages_;  // [tp, message_bytes_]
  std::vector<SliceStats> slices_;
  std::vector<double> terms_;
  std::vector<float> whole_raw_;
  std::vector<float> whole_processed_;
  MergedCandidates merged_;
  WholeRow whole_row_;
  TokenChooser chooser_;
};

void VocabSampler::Impl::Place(std::span<const LogitsRow> rows, std::span<const size_t> indices) {
  placed_.clear();
  message_bytes_ = 0;
  for (const size_t i : indices) {
    const RowShape shape = ShapeOf(rows[i], options_, num_slices_);
    placed_.push_back({.shape = shape, .offset = message_bytes_});
    message_bytes_ += RecordBytes(shape);
  }
  messages_.resize(static_cast<size_t>(message_bytes_ * tp_.size()));
}

RowRecord VocabSampler::Impl::Record(const Placed& placed, int rank) {
  return RecordAt(placed.shape, messages_.data() + rank * message_bytes_ + placed.offset);
}

void VocabSampler::Impl::Summarize(std::span<const LogitsRow> rows, std::span<const size_t> indices,
                                   const float* logits) {
  for (size_t i = 0; i < indices.size(); ++i) {
    RowRecord record = Record(placed_[i], tp_.rank());
    summarizer_.Summarize(rows[indices[i]], placed_[i].shape, RowOf(logits, indices[i]), record);
  }
}

RowStats VocabSampler::Impl::Combine(const Placed& placed, std::span<SliceStats> RowRecord::*stats,
                                     float inverse_temperature) {
  slices_.clear();
  for (int rank = 0; rank < tp_.size(); ++rank) {
    const RowRecord record = Record(placed, rank);
    slices_.insert(slices_.end(), (record.*stats).begin(), (record.*stats).end());
  }
  return CombineStats(slices_, inverse_temperature, terms_);
}

std::optional<int32_t> VocabSampler::Impl::ChooseFromCandidates(const LogitsRow& row,
                                                                const Placed& placed) {
  merged_.Reset();
  for (int rank = 0; rank < tp_.size(); ++rank) {
    const RowRecord record = Record(placed, rank);
    merged_.Add({.candidates = record.candidates.first(record.candidate_header->count),
                 .cut = record.candidate_header->cut != 0});
  }
  if (placed.shape.greedy) {
    const std::optional<Candidate> largest = merged_.Next();
    return largest.has_value() ? largest->token : 0;
  }
  const RowStats processed =
      Combine(placed, &RowRecord::processed_stats, InverseTemperature(*row.params));
  return chooser_.Choose(merged_, RuleOf(row, processed));
}

double VocabSampler::Impl::RawLogitOf(int32_t token, const Placed& placed) {
  for (int rank = 0; rank < tp_.size(); ++rank) {
    const RowRecord record = Record(placed, rank);
    for (int32_t i = 0; i < record.candidate_header->count; ++i) {
      if (record.candidates[i].token != token) continue;
      return record.raw_values.empty() ? record.candidates[i].value : record.raw_values[i];
    }
  }
  return kLowestLogit;  // every logit is -infinity
}

double VocabSampler::Impl::TargetLogit(const Placed& placed) {
  double logit = kLowestLogit;
  for (int rank = 0; rank < tp_.size(); ++rank) {
    logit = std::max(logit, *Record(placed, rank).target_logit);
  }
  return logit;
}

void VocabSampler::Impl::FillLogprobs(double logit, const Placed& placed, RowOutcome& outcome) {
  const RowStats raw = Combine(placed, &RowRecord::raw_stats, 1.0f);
  outcome.has_logprobs = true;
  outcome.logprobs.logprob = LogprobOf(logit, raw);
  merged_.Reset();
  for (int rank = 0; rank < tp_.size(); ++rank) {
    const RowRecord record = Record(placed, rank);
    merged_.Add({.candidates = record.top.first(record.top_header->count)});
  }
  for (int i = 0; i < placed.shape.num_top; ++i) {
    const std::optional<Candidate> top = merged_.Next();
    if (!top.has_value()) return;
    outcome.logprobs.top.push_back({.token = top->token, .logprob = LogprobOf(top->value, raw)});
  }
}

absl::Status VocabSampler::Impl::GatherRow(std::span<const float> mine, std::vector<float>& whole) {
  // Ranks own equal parts but for the last ones, so the concatenation of padded parts is in token
  // order.
  const int64_t part = VocabOf(sizes_, tp_.size(), 0).size();
  whole.resize(static_cast<size_t>(part * tp_.size()));
  std::copy(mine.begin(), mine.end(), whole.begin() + part * tp_.rank());
  RETURN_IF_ERROR(tp_.AllGather(whole.data() + part * tp_.rank(),
                                part * static_cast<int64_t>(sizeof(float)), whole.data()));
  whole.resize(static_cast<size_t>(options_.vocab_size));
  return absl::OkStatus();
}

absl::Status VocabSampler::Impl::ChooseFromWholeRow(const LogitsRow& row, const Placed& placed,
                                                    std::span<const float> logits,
                                                    RowOutcome& outcome) {
  ++num_whole_rows_gathered_;
  const RowSummarizer::Rows mine = summarizer_.Prepare(row, placed.shape, logits);
  RETURN_IF_ERROR(GatherRow(mine.processed, whole_processed_));
  const RowStats processed =
      Combine(placed, &RowRecord::processed_stats, InverseTemperature(*row.params));
  whole_row_.Reset(whole_processed_);
  outcome.token = chooser_.Choose(whole_row_, RuleOf(row, processed)).value();
  if (!placed.shape.wants_logprobs) return absl::OkStatus();
  if (placed.shape.adjusted) RETURN_IF_ERROR(GatherRow(mine.raw, whole_raw_));
  const std::vector<float>& raw = placed.shape.adjusted ? whole_raw_ : whole_processed_;
  FillLogprobs(raw[outcome.token], placed, outcome);
  return absl::OkStatus();
}

absl::Status VocabSampler::Impl::ChooseRow(const LogitsRow& row, size_t index, const Placed& placed,
                                           const float* logits, RowOutcome& outcome) {
  if (!placed.shape.chooses) {
    outcome.token = row.prompt_target;
    if (placed.shape.wants_logprobs) FillLogprobs(TargetLogit(placed), placed, outcome);
    return absl::OkStatus();
  }
  const std::optional<int32_t> token = ChooseFromCandidates(row, placed);
  if (!token.has_value()) return ChooseFromWholeRow(row, placed, RowOf(logits, index), outcome);
  const double raw = *token == 0 || placed.shape.wants_logprobs ? RawLogitOf(*token, placed) : 0.0;
  outcome.token = raw > kLowestLogit ? *token : kNoToken;
  if (placed.shape.wants_logprobs) FillLogprobs(raw, placed, outcome);
  return absl::OkStatus();
}

absl::Status VocabSampler::Impl::ChooseRows(std::span<const LogitsRow> rows,
                                            std::span<const size_t> indices, const float* logits,
                                            std::vector<RowOutcome>& outcomes) {
  Place(rows, indices);
  Summarize(rows, indices, logits);
  RETURN_IF_ERROR(tp_.AllGather(messages_.data() + tp_.rank() * message_bytes_, message_bytes_,
                                messages_.data()));
  for (size_t i = 0; i < indices.size(); ++i) {
    RETURN_IF_ERROR(
        ChooseRow(rows[indices[i]], indices[i], placed_[i], logits, outcomes[indices[i]]));
  }
  return absl::OkStatus();
}

absl::Status VocabSampler::Impl::ChooseOnHost(std::span<const LogitsRow> rows, const float* logits,
                                              std::vector<RowOutcome>& outcomes) {
  indices_.resize(rows.size());
  std::iota(indices_.begin(), indices_.end(), size_t{0});
  return ChooseRows(rows, indices_, logits, outcomes);
}

// ---- with a device ----

void VocabSampler::Impl::FindShapes(std::span<const LogitsRow> rows,
                                    std::vector<RowShape>& shapes) const {
  shapes.clear();
  for (const LogitsRow& row : rows) shapes.push_back(ShapeOf(row, options_, num_slices_));
}

bool VocabSampler::Impl::WouldDecideAll(std::span<const LogitsRow> rows) {
  FindShapes(rows, shapes_);
  return device_->DecidesAll({rows, shapes_, options_.eos_token_ids});
}

absl::Status VocabSampler::Impl::Begin(std::span<const LogitsRow> rows, const LogitsTiles& tiles) {
  Begun& begun = begun_[static_cast<size_t>(num_begun_++ % DeviceChooser::kMaxInFlight)];
  begun.rows.assign(rows.begin(), rows.end());
  FindShapes(rows, begun.shapes);
  const auto tile = [&](int64_t first, int64_t count) -> absl::StatusOr<const float*> {
    ASSIGN_OR_RETURN(begun.logits, tiles.logits(first, count));
    return begun.logits;
  };
  RETURN_IF_ERROR(device_->Issue({rows, begun.shapes, options_.eos_token_ids},
                                 {.logits = tile, .max_rows = tiles.max_rows}));
  LS_CHECK(device_->decides_all() || std::ssize(rows) <= tiles.max_rows)
      << "logits that the host needs are gone";
  return absl::OkStatus();
}

VocabSampler::Impl::Placed VocabSampler::Impl::PlaceRawResults(const RowShape& shape,
                                                               size_t index) {
  const Placed placed = {.shape = shape, .offset = 0};
  message_bytes_ = RecordBytes(shape);
  messages_.resize(static_cast<size_t>(message_bytes_ * tp_.size()));
  for (int rank = 0; rank < tp_.size(); ++rank) {
    RowRecord record = Record(placed, rank);
    device_->summaries().FillRaw(device_->RawResult(static_cast<int64_t>(index), rank), shape,
                                 VocabOf(sizes_, tp_.size(), rank).begin, record);
  }
  return placed;
}

bool VocabSampler::Impl::FinishRow(const Begun& begun, size_t index, RowOutcome& outcome) {
  const RowShape& shape = begun.shapes[index];
  const auto row = static_cast<int64_t>(index);
  if (!shape.chooses) {
    if (device_->RawResult(row, 0) == nullptr) return false;
    outcome.token = begun.rows[index].prompt_target;
    if (!shape.wants_logprobs) return true;
    const Placed placed = PlaceRawResults(shape, index);
    FillLogprobs(TargetLogit(placed), placed, outcome);
    return true;
  }
  const std::optional<ChosenToken> chosen = device_->Chosen(row);
  if (!chosen.has_value()) return false;
  outcome.token = chosen->raw > kLowestLogit ? chosen->token : kNoToken;
  if (shape.wants_logprobs) FillLogprobs(chosen->raw, PlaceRawResults(shape, index), outcome);
  return true;
}

absl::Status VocabSampler::Impl::Finish(std::vector<RowOutcome>& outcomes) {
  LS_CHECK(num_finished_ < num_begun_) << "nothing was begun";
  const Begun& begun = begun_[static_cast<size_t>(num_finished_++ % DeviceChooser::kMaxInFlight)];
  // Before others see what a group that has ended may have left undefined.
  RETURN_IF_ERROR(device_->Wait());
  outcomes.assign(begun.rows.size(), {});
  indices_.clear();
  for (size_t i = 0; i < begun.rows.size(); ++i) {
    if (!FinishRow(begun, i, outcomes[i])) indices_.push_back(i);
  }
  if (indices_.empty()) return absl::OkStatus();
  LS_CHECK_EQ(num_finished_, num_begun_) << "of rows whose logits are gone";
  return ChooseRows(begun.rows, indices_, begun.logits, outcomes);
}

VocabSampler::VocabSampler(SamplerOptions options, Communicator& tp, DeviceChooser* device)
    : impl_(std::make_unique<Impl>(std::move(options), tp, device)) {}
VocabSampler::~VocabSampler() = default;

absl::Status VocabSampler::Choose(std::span<const LogitsRow> rows, const float* logits,
                                  std::vector<RowOutcome>& outcomes) {
  outcomes.assign(rows.size(), {});
  if (rows.empty()) return absl::OkStatus();
  if (impl_->device() == nullptr) return impl_->ChooseOnHost(rows, logits, outcomes);
  RETURN_IF_ERROR(Begin(rows, logits));
  return impl_->Finish(outcomes);
}
absl::Status VocabSampler::Begin(std::span<const LogitsRow> rows, const LogitsTiles& tiles) {
  return impl_->Begin(rows, tiles);
}
absl::Status VocabSampler::Begin(std::span<const LogitsRow> rows, const float* logits) {
  const auto all = [&](int64_t, int64_t) -> absl::StatusOr<const float*> { return logits; };
  return impl_->Begin(rows, {.logits = all, .max_rows = std::max<int64_t>(std::ssize(rows), 1)});
}
bool VocabSampler::WouldDecideAll(std::span<const LogitsRow> rows) {
  return impl_->WouldDecideAll(rows);
}
bool VocabSampler::DecidesAll() const { return impl_->device()->decides_all(); }
bool VocabSampler::IsDone() { return impl_->device()->IsDone(); }
absl::Status VocabSampler::Finish(std::vector<RowOutcome>& outcomes) {
  return impl_->Finish(outcomes);
}
Range VocabSampler::vocab() const { return impl_->vocab(); }
int64_t VocabSampler::num_whole_rows_gathered() const { return impl_->num_whole_rows_gathered(); }

}  // namespace lockstep
