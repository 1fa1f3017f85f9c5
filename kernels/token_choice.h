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
  // Where the summary does not reach far enough, the choice goes on in the whole row if one of
  // these is >= 0: which row of TokenChoiceArgs.logits it is, of those that are not adjusted and
  // lie here; or which of TokenChoiceArgs.kept, and, if they are not the same, which its logits
  // before adjustments are.
  int32_t row = -1;
  int32_t kept_row = -1;
  int32_t kept_raw_row = -1;
  int32_t reserved = 0;
};

// Token kUndecidedToken: the choice would have gone on where it may not. Token 0 with a raw logit
// of -infinity: there was none to choose.
struct ChosenToken {
  int32_t token = 0;
  float raw = 0.0f;  // its logit before adjustments
};
constexpr int32_t kUndecidedToken = -1;

// Summaries do not reach far enough for rows with more largest logits, of all ranks together, and
// for those that must walk over more tokens than kMaxChoiceSteps.
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
  // Of each rank's LogitsSummaryArgs::kept, [num_ranks, kept_rows, part_width]; null: no job has
  // one.
  const float* kept = nullptr;
  int64_t kept_rows = 0;
  ChosenToken* chosen = nullptr;
};

}  // namespace lockstep
