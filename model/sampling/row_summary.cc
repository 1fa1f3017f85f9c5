#include "model/sampling/row_summary.h"

#include <algorithm>
#include <limits>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// A top_k up to here is always complete in the candidates; above, deep choices gather whole rows.
constexpr int32_t kMaxCandidates = 1024;

// Walks through a record's fields, which all are multiples of 8 bytes.
class FieldCursor {
 public:
  explicit FieldCursor(std::byte* base) : base_(base) {}
  template <typename T>
  std::span<T> Take(int64_t count) {
    std::byte* field = base_ == nullptr ? nullptr : base_ + offset_;
    offset_ += (count * static_cast<int64_t>(sizeof(T)) + 7) / 8 * 8;
    return {reinterpret_cast<T*>(field), static_cast<size_t>(base_ == nullptr ? 0 : count)};
  }
  int64_t offset() const { return offset_; }

 private:
  std::byte* base_;
  int64_t offset_ = 0;
};

RowRecord Walk(const RowShape& shape, FieldCursor& cursor) {
  RowRecord record;
  if (shape.chooses) {
    if (!shape.greedy) record.processed_stats = cursor.Take<SliceStats>(shape.num_slices);
    record.candidate_header = cursor.Take<ListHeader>(1).data();
    record.candidates = cursor.Take<Candidate>(shape.num_candidates);
    if (shape.adjusted && shape.wants_logprobs) {
      record.raw_values = cursor.Take<float>(shape.num_candidates);
    }
  } else {
    record.target_logit = cursor.Take<double>(1).data();
  }
  if (shape.wants_logprobs) {
    record.raw_stats = cursor.Take<SliceStats>(shape.num_slices);
    record.top_header = cursor.Take<ListHeader>(1).data();
    record.top = cursor.Take<Candidate>(shape.num_top);
  }
  return record;
}

int32_t NumCandidates(const SamplingParams& params, const SamplerOptions& options) {
  if (params.temperature == 0.0f || params.top_k == 1) return 1;
  const int32_t wanted = params.top_k > 0 ? params.top_k : options.num_candidates;
  return static_cast<int32_t>(std::min<int64_t>({wanted, kMaxCandidates, options.vocab_size}));
}

}  // namespace

RowShape ShapeOf(const LogitsRow& row, const SamplerOptions& options, int num_slices) {
  const SamplingParams& params = *row.params;
  RowShape shape;
  shape.num_slices = num_slices;
  shape.chooses = row.prompt_target < 0;
  const int32_t num_top = shape.chooses ? params.num_logprobs : params.num_prompt_logprobs;
  shape.wants_logprobs = num_top >= 0;
  shape.num_top = std::max(num_top, 0);
  if (!shape.chooses) return shape;
  shape.greedy = params.temperature == 0.0f;
  shape.adjusted = NeedsAdjusting(params, row.num_output_tokens, options.eos_token_ids);
  shape.num_candidates = NumCandidates(params, options);
  return shape;
}

int64_t RecordBytes(const RowShape& shape) {
  FieldCursor cursor(nullptr);
  Walk(shape, cursor);
  return cursor.offset();
}

RowRecord RecordAt(const RowShape& shape, std::byte* base) {
  FieldCursor cursor(base);
  return Walk(shape, cursor);
}

RowSummarizer::RowSummarizer(Range vocab, std::vector<Range> slices,
                             std::span<const int32_t> eos_token_ids)
    : vocab_(vocab), slices_(std::move(slices)), eos_token_ids_(eos_token_ids) {}

RowSummarizer::Rows RowSummarizer::Prepare(const LogitsRow& row, const RowShape& shape,
                                           std::span<const float> logits) {
  LS_CHECK_EQ(static_cast<int64_t>(logits.size()), vocab_.size());
  Rows rows{.raw = logits, .processed = logits};
  largest_ = LargestOf(logits);
  if (largest_.value == kInf) {
    clamped_.assign(logits.begin(), logits.end());
    std::replace(clamped_.begin(), clamped_.end(), kInf, std::numeric_limits<float>::max());
    largest_.value = std::numeric_limits<float>::max();
    rows.raw = rows.processed = clamped_;
    largest_ = LargestOf(clamped_);
  }
  if (shape.adjusted) {
    processed_.assign(rows.raw.begin(), rows.raw.end());
    AdjustLogits(processed_, vocab_, OutputOf(row, eos_token_ids_));
    rows.processed = processed_;
  }
  return rows;
}

void RowSummarizer::FillStats(std::span<const float> row, float inverse_temperature,
                              std::span<SliceStats> stats) const {
  for (size_t i = 0; i < slices_.size(); ++i) {
    const std::span<const float> slice =
        row.subspan(slices_[i].begin - vocab_.begin, slices_[i].size());
    const float max = LargestOf(slice).value;
    stats[i] = {.max = max, .sum = SumOfExps(slice, max, inverse_temperature)};
  }
}

void RowSummarizer::FillCandidates(const Rows& rows, const RowShape& shape, RowRecord& record) {
  const int32_t first = static_cast<int32_t>(vocab_.begin);
  if (shape.num_candidates == 1) {
    const Candidate largest = shape.adjusted ? LargestOf(rows.processed) : largest_;
    selected_.clear();
    if (largest.token >= 0) {
      selected_.push_back({.value = largest.value, .token = first + largest.token});
    }
  } else {
    SelectLargest(rows.processed, first, shape.num_candidates, selected_);
  }
  record.candidate_header->cut = static_cast<int32_t>(selected_.size()) == shape.num_candidates &&
                                 shape.num_candidates < vocab_.size();
  // Token 0 is chosen when nothing else can be: its raw logit must be known.
  if (selected_.empty() && first == 0) selected_.push_back({.value = -kInf, .token = 0});
  record.candidate_header->count = static_cast<int32_t>(selected_.size());
  std::copy(selected_.begin(), selected_.end(), record.candidates.begin());
  if (record.raw_values.empty()) return;
  for (size_t i = 0; i < selected_.size(); ++i) {
    record.raw_values[i] = rows.raw[selected_[i].token - first];
  }
}

void RowSummarizer::FillTop(const Rows& rows, const RowShape& shape, RowRecord& record) {
  SelectLargest(rows.raw, static_cast<int32_t>(vocab_.begin), shape.num_top, selected_);
  record.top_header->count = static_cast<int32_t>(selected_.size());
  record.top_header->cut = 0;  // num_top of every rank are enough for num_top of all
  std::copy(selected_.begin(), selected_.end(), record.top.begin());
}

void RowSummarizer::Summarize(const LogitsRow& row, const RowShape& shape,
                              std::span<const float> logits, RowRecord& record) {
  const Rows rows = Prepare(row, shape, logits);
  if (shape.chooses) {
    if (!shape.greedy) {
      FillStats(rows.processed, InverseTemperature(*row.params), record.processed_stats);
    }
    FillCandidates(rows, shape, record);
  } else {
    const int64_t index = row.prompt_target - vocab_.begin;
    const bool mine = index >= 0 && index < vocab_.size();
    *record.target_logit = mine ? rows.raw[index] : -kInf;
  }
  if (shape.wants_logprobs) {
    FillStats(rows.raw, 1.0f, record.raw_stats);
    FillTop(rows, shape, record);
  }
}

}  // namespace lockstep
