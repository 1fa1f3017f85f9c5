// What one rank tells the others about its part of one row of logits, as plain bytes inside a
// gathered message.
//
// All ranks derive the same RowShape from the row's parameters, so a record's size and the place of
// every field need no header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/sampling/adjust_logits.h"
#include "model/sampling/row_kernels.h"
#include "model/sampling/vocab_sampler.h"
#include "parallel/partition.h"

namespace lockstep {

// Of one slice of the vocabulary: sum is relative to max (SumOfExps).
struct SliceStats {
  double max = 0.0;
  double sum = 0.0;
};

struct ListHeader {
  int32_t count = 0;
  int32_t cut = 0;  // the rank's part may hold more candidates above -infinity
};

struct RowShape {
  bool chooses = false;         // not a prompt row
  bool greedy = false;          // argmax only: no processed statistics
  bool adjusted = false;        // processed logits differ from raw ones
  bool wants_logprobs = false;  // raw statistics and the most likely raw tokens
  int32_t num_candidates = 0;
  int32_t num_top = 0;
  int32_t num_slices = 0;  // of one rank
};

// Fields that the shape lacks are empty.
struct RowRecord {
  std::span<SliceStats> processed_stats;  // of logits / temperature
  std::span<SliceStats> raw_stats;
  ListHeader* candidate_header = nullptr;
  std::span<Candidate> candidates;  // processed logits
  std::span<float> raw_values;      // raw logits of candidates; empty when the same
  ListHeader* top_header = nullptr;
  std::span<Candidate> top;        // raw logits
  double* target_logit = nullptr;  // raw; -infinity unless the target is this rank's
};

RowShape ShapeOf(const LogitsRow& row, const SamplerOptions& options, int num_slices);
// A multiple of 8.
int64_t RecordBytes(const RowShape& shape);
// base: RecordBytes(shape) bytes, aligned to 8.
RowRecord RecordAt(const RowShape& shape, std::byte* base);

// What the vocabulary is divided by.
inline ShardedSizes VocabSizes(int64_t vocab_size) {
  ShardedSizes sizes;
  sizes.vocab_size = vocab_size;
  return sizes;
}

// Temperature as the exponent's factor; the same f32 on every path.
inline float InverseTemperature(const SamplingParams& params) { return 1.0f / params.temperature; }

// Computes records of this rank's part of the vocabulary. One per thread: it owns scratch memory.
class RowSummarizer {
 public:
  // slices: this rank's, in order; together they are vocab.
  RowSummarizer(Range vocab, std::vector<Range> slices, std::span<const int32_t> eos_token_ids);

  void Summarize(const LogitsRow& row, const RowShape& shape, std::span<const float> logits,
                 RowRecord& record);

  // The same two rows of logits that Summarize works on; valid until the next call.
  struct Rows {
    std::span<const float> raw;  // +infinity clamped
    std::span<const float> processed;
  };
  Rows Prepare(const LogitsRow& row, const RowShape& shape, std::span<const float> logits);

 private:
  void FillStats(std::span<const float> row, float inverse_temperature,
                 std::span<SliceStats> stats) const;
  void FillCandidates(const Rows& rows, const RowShape& shape, RowRecord& record);
  void FillTop(const Rows& rows, const RowShape& shape, RowRecord& record);

  Range vocab_;
  std::vector<Range> slices_;
  std::span<const int32_t> eos_token_ids_;
  std::vector<float> clamped_;
  std::vector<float> processed_;
  std::vector<Candidate> selected_;
  Candidate largest_;  // of the row prepared last, raw; token counts from 0
};

}  // namespace lockstep
