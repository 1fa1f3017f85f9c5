#include "model/sampling/vocab_sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "model/sampling/device_summary.h"
#include "model/sampling/philox.h"
#include "model/sampling/row_kernels.h"
#include "model/sampling/row_summary.h"
#include "model/sampling/token_choice.h"

namespace lockstep {
namespace {

constexpr double kNegInf = -std::numeric_limits<double>::infinity();

ShardedSizes VocabOnly(int64_t vocab_size) {
  ShardedSizes sizes;
  sizes.vocab_size = vocab_size;
  return sizes;
}

std::vector<Range> SlicesOf(const ShardedSizes& sizes, int tp, int tp_rank) {
  const int per_rank = NumVocabSlices(tp) / tp;
  std::vector<Range> slices;
  for (int i = 0; i < per_rank; ++i) {
    slices.push_back(VocabSlice(sizes, tp, tp_rank * per_rank + i));
  }
  return slices;
}

// The statistics of a whole row, from those of its slices.
struct RowStats {
  double max = kNegInf;
  double sum = 0.0;
};

// Adds neighbours, then neighbours of neighbours, ...: the same sum for every tp in {1, 2, 4, 8}.
RowStats CombineStats(std::span<const SliceStats> slices, double inverse_temperature,
                      std::vector<double>& terms) {
  RowStats row;
  for (const SliceStats& slice : slices) row.max = std::max(row.max, slice.max);
  terms.clear();
  for (const SliceStats& slice : slices) {
    const double scale =
        slice.max == kNegInf ? 0.0 : PortableExp((slice.max - row.max) * inverse_temperature);
    terms.push_back(slice.sum * scale);
  }
  for (size_t step = 1; step < terms.size(); step *= 2) {
    for (size_t i = 0; i + step < terms.size(); i += 2 * step) terms[i] += terms[i + step];
  }
  row.sum = terms[0];
  return row;
}

float LogprobOf(double logit, const RowStats& raw) {
  if (!(logit > kNegInf)) return -std::numeric_limits<float>::infinity();
  return static_cast<float>(std::min(0.0, logit - raw.max - std::log(raw.sum)));
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
  Impl(SamplerOptions options, Communicator& tp, DeviceSummarizer* device)
      : options_(std::move(options)),
        tp_(tp),
        device_(device),
        sizes_(VocabOnly(options_.vocab_size)),
        vocab_(VocabOf(sizes_, tp.size(), tp.rank())),
        num_slices_(NumVocabSlices(tp.size()) / tp.size()),
        summarizer_(vocab_, SlicesOf(sizes_, tp.size(), tp.rank()), options_.eos_token_ids) {
    LS_CHECK(options_.vocab_size >= 1 && options_.num_candidates >= 1);
  }

  absl::Status Choose(std::span<const LogitsRow> rows, const float* logits,
                      std::vector<RowOutcome>& outcomes);
  Range vocab() const { return vocab_; }
  int64_t num_whole_rows_gathered() const { return num_whole_rows_gathered_; }

 private:
  // One row of the call: its shape and where its record begins in every rank's message.
  struct Placed {
    RowShape shape;
    int64_t offset = 0;
  };

  void Place(std::span<const LogitsRow> rows);
  void Summarize(std::span<const LogitsRow> rows, const float* logits);
  void SummarizeOnDevice(std::span<const LogitsRow> rows, const float* logits);
  RowRecord Record(const Placed& placed, int rank);
  RowStats Combine(const Placed& placed, std::span<SliceStats> RowRecord::*stats,
                   float inverse_temperature);

  // nullopt: the candidates do not reach far enough.
  std::optional<int32_t> ChooseFromCandidates(const LogitsRow& row, const Placed& placed);
  double RawLogitOf(int32_t token, const Placed& placed);
  void FillLogprobs(double logit, const Placed& placed, RowOutcome& outcome);
  // Gathers the row's logits and chooses from all of them.
  absl::Status ChooseFromWholeRow(const LogitsRow& row, const Placed& placed,
                                  std::span<const float> logits, RowOutcome& outcome);
  absl::Status GatherRow(std::span<const float> mine, std::vector<float>& whole);
  // On the host, until the next call.
  std::span<const float> RowOf(const float* logits, int64_t index) const {
    if (device_ != nullptr) return device_->Fetch(index);
    return {logits + index * vocab_.size(), static_cast<size_t>(vocab_.size())};
  }

  SamplerOptions options_;
  Communicator& tp_;
  DeviceSummarizer* const device_;  // null: logits are in the host's memory
  ShardedSizes sizes_;
  Range vocab_;
  int num_slices_;  // of one rank
  RowSummarizer summarizer_;
  int64_t num_whole_rows_gathered_ = 0;

  // Reused from call to call.
  std::vector<Placed> placed_;
  std::vector<size_t> left_to_host_;
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

void VocabSampler::Impl::Place(std::span<const LogitsRow> rows) {
  placed_.clear();
  message_bytes_ = 0;
  for (const LogitsRow& row : rows) {
    const RowShape shape = ShapeOf(row, options_, num_slices_);
    placed_.push_back({.shape = shape, .offset = message_bytes_});
    message_bytes_ += RecordBytes(shape);
  }
}

RowRecord VocabSampler::Impl::Record(const Placed& placed, int rank) {
  return RecordAt(placed.shape, messages_.data() + rank * message_bytes_ + placed.offset);
}

void VocabSampler::Impl::Summarize(std::span<const LogitsRow> rows, const float* logits) {
  messages_.resize(static_cast<size_t>(message_bytes_ * tp_.size()));
  if (device_ != nullptr) return SummarizeOnDevice(rows, logits);
  for (size_t i = 0; i < rows.size(); ++i) {
    RowRecord record = Record(placed_[i], tp_.rank());
    summarizer_.Summarize(rows[i], placed_[i].shape, RowOf(logits, static_cast<int64_t>(i)),
                          record);
  }
}

void VocabSampler::Impl::SummarizeOnDevice(std::span<const LogitsRow> rows, const float* logits) {
  device_->Begin(logits);
  left_to_host_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!device_->Add(static_cast<int64_t>(i), rows[i], placed_[i].shape, options_.eos_token_ids)) {
      left_to_host_.push_back(i);
    }
  }
  device_->Run();
  for (size_t i = 0; i < rows.size(); ++i) {
    RowRecord record = Record(placed_[i], tp_.rank());
    device_->Fill(static_cast<int64_t>(i), placed_[i].shape, record);
  }
  for (const size_t i : left_to_host_) {
    RowRecord record = Record(placed_[i], tp_.rank());
    summarizer_.Summarize(rows[i], placed_[i].shape, RowOf(logits, static_cast<int64_t>(i)),
                          record);
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
  return kNegInf;  // every logit is -infinity
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

absl::Status VocabSampler::Impl::Choose(std::span<const LogitsRow> rows, const float* logits,
                                        std::vector<RowOutcome>& outcomes) {
  outcomes.assign(rows.size(), {});
  if (rows.empty()) return absl::OkStatus();
  Place(rows);
  Summarize(rows, logits);
  // Before others see what a group that has ended may have left undefined.
  if (device_ != nullptr) RETURN_IF_ERROR(device_->Health());
  RETURN_IF_ERROR(tp_.AllGather(messages_.data() + tp_.rank() * message_bytes_, message_bytes_,
                                messages_.data()));
  for (size_t i = 0; i < rows.size(); ++i) {
    const Placed& placed = placed_[i];
    RowOutcome& outcome = outcomes[i];
    double logit = kNegInf;
    if (placed.shape.chooses) {
      const std::optional<int32_t> token = ChooseFromCandidates(rows[i], placed);
      if (!token.has_value()) {
        RETURN_IF_ERROR(
            ChooseFromWholeRow(rows[i], placed, RowOf(logits, static_cast<int64_t>(i)), outcome));
        continue;
      }
      outcome.token = *token;
      if (placed.shape.wants_logprobs) logit = RawLogitOf(*token, placed);
    } else {
      outcome.token = rows[i].prompt_target;
      for (int rank = 0; rank < tp_.size(); ++rank) {
        logit = std::max(logit, *Record(placed, rank).target_logit);
      }
    }
    if (placed.shape.wants_logprobs) FillLogprobs(logit, placed, outcome);
  }
  return absl::OkStatus();
}

VocabSampler::VocabSampler(SamplerOptions options, Communicator& tp, DeviceSummarizer* device)
    : impl_(std::make_unique<Impl>(std::move(options), tp, device)) {}
VocabSampler::~VocabSampler() = default;

absl::Status VocabSampler::Choose(std::span<const LogitsRow> rows, const float* logits,
                                  std::vector<RowOutcome>& outcomes) {
  return impl_->Choose(rows, logits, outcomes);
}
Range VocabSampler::vocab() const { return impl_->vocab(); }
int64_t VocabSampler::num_whole_rows_gathered() const { return impl_->num_whole_rows_gathered(); }

}  // namespace lockstep
