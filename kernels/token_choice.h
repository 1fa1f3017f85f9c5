// What Backend::ChooseTokens takes and gives: the next tokens of sequences, chosen on the device
// from summaries of their logits (kernels/logits_summary.h) as kernels/base/choice_walk.h defines,
// the draws made there from counters (kernels/base/philox.h).
//
// Jobs and results are plain bytes that are copied as they are.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

struct TokenChoiceJob {
  int32_t summary = 0;               // bytes: where the row's LogitsSummary lies among each rank's
  int32_t num_largest = 0;           // its LogitsJob's
  float inverse_temperature = 0.0f;  // the same; 0: the largest logit is chosen
  int32_t top_k = 0;                 // 0: off, as the next two where they are 1 and 0
  float top_p = 1.0f;
  float min_p = 0.0f;
  uint64_t seed = 0;  // this and the next two: the draw's key and counter
  uint64_t position = 0;
  uint32_t sequence_index = 0;
  int32_t place = 0;  // among the results
  // >= 0: of a summary of raw logits, chosen from without top_k: which row of
  // TokenChoiceArgs.logits they are, to go on there where the summary does not reach far enough.
  int32_t row = -1;
  int32_t reserved = 0;
};

// Token kUndecidedToken: the summary does not reach far enough, or a rank has none.
struct ChosenToken {
  int32_t token = 0;
  float raw = 0.0f;  // its logit before adjustments
};
constexpr int32_t kUndecidedToken = -1;

// Rows with more largest logits, of all ranks together, are undecided; so are those that must walk
// over more tokens than kMaxChoiceSteps.
constexpr int32_t kMaxChoiceCandidates = 2048;
constexpr int32_t kMaxChoiceSteps = 1024;

// Summaries of the same jobs by all ranks, each over its part of the vocabulary, of which the last
// ones may be shorter or empty. All pointers are the device's.
struct TokenChoiceArgs {
  const std::byte* summaries = nullptr;  // rank 0's
  int64_t rank_stride = 0;               // bytes from a rank's to the next one's
  int num_ranks = 1;
  int num_slices = 0;      // of a rank
  int64_t part_width = 0;  // tokens of a rank
  int64_t vocab_size = 0;
  const TokenChoiceJob* jobs = nullptr;
  int num_jobs = 0;
  const float* logits = nullptr;  // [rows, vocab_size]; null: no job has a row
  ChosenToken* chosen = nullptr;
};

}  // namespace lockstep
