// What Backend::SummarizeLogits takes and gives: of each row of logits that lie on the device, a
// summary of some KB, so that the rows themselves need not come to the host.
//
// Jobs, adjustments and results are plain bytes that are copied as they are. NaN counts as
// -infinity and +infinity as the largest finite number throughout.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

struct ChosenToken;  // kernels/token_choice.h

// How one logit is changed before it is summarised; `index` is that of the token in its row.
struct LogitAdjustment {
  int32_t index = 0;
  float amount = 0.0f;
};

// A row, raw or adjusted, and what is wanted of it. Adjusted means, in this order and with each
// operation rounded to f32 (model/sampling/adjust_logits.h): the first num_biases adjustments add
// their amount; the next num_penalties divide positive values by repetition_penalty and multiply
// others by it, then, where the amount, a count, is above 0, subtract frequency_penalty * amount
// and presence_penalty; the last num_masks make it -infinity. Within the biases and within the
// penalties, no index comes twice; all are inside the row. Where first_allowed >= 0, that place of
// the adjustments begins a bit for each token of the row, 32 to a word, the lowest first; those
// whose bit is not set become -infinity.
struct LogitsJob {
  int32_t row = 0;
  int32_t num_largest = 0;           // at most kMaxLargestLogits
  int32_t told_index = 0;            // of a token whose raw logit is told; -1: of none
  float inverse_temperature = 0.0f;  // 0: sums are not wanted, and left 0
  int32_t first_adjustment = 0;
  int32_t num_biases = 0;
  int32_t num_penalties = 0;
  int32_t num_masks = 0;
  float repetition_penalty = 1.0f;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  // >= 0: penalties also count the token at this place among LogitsSummaryArgs::chosen, once more
  // than their list does.
  int32_t uncounted = -1;
  int32_t out_offset = 0;  // bytes, a multiple of 8
  int32_t kept = -1;       // >= 0: which of LogitsSummaryArgs::kept the row, as adjusted, becomes
  int32_t first_allowed = -1;
  int32_t reserved = 0;
};
constexpr int32_t kMaxLargestLogits = 256;
// How many adjustments the bits of so many tokens take the place of.
constexpr int64_t AllowedAdjustments(int64_t width) { return (width + 63) / 64; }

// A job's result: LogitsSummary, then num_slices of LogitsSlice, then num_largest of LargestLogit,
// of which `count` are filled, the larger first, lower indices first among equals; none is
// -infinity.
struct LogitsSummary {
  int32_t count = 0;
  float told = 0.0f;  // the raw logit of told_index; -infinity if that is none
};
// Of a slice of the row: its largest logit, and the sum of exp((logit - max) * inverse_temperature)
// to a relative error below 1e-5; -infinity and 0 when all are -infinity, or the slice is empty.
struct LogitsSlice {
  double max = 0.0;
  double sum = 0.0;
};
struct LargestLogit {
  float value = 0.0f;
  float raw = 0.0f;  // before adjustments
  int32_t index = 0;
};

constexpr int64_t LogitsSummaryBytes(int num_slices, int32_t num_largest) {
  const int64_t bytes = int64_t{sizeof(LogitsSummary)} + num_slices * int64_t{sizeof(LogitsSlice)} +
                        num_largest * int64_t{sizeof(LargestLogit)};
  return (bytes + 7) / 8 * 8;
}

// Rows of `width` logits, cut into num_slices slices of slice_width; the last ones may be shorter
// or empty. All pointers are the device's.
struct LogitsSummaryArgs {
  const float* logits = nullptr;
  int64_t width = 0;
  int64_t first_token = 0;  // the id of a row's first
  int64_t slice_width = 0;
  int num_slices = 0;
  const LogitsJob* jobs = nullptr;
  int num_jobs = 0;
  int32_t max_largest = 0;  // of the jobs
  const LogitAdjustment* adjustments = nullptr;
  const ChosenToken* chosen = nullptr;  // null where no job has one uncounted
  void* workspace = nullptr;            // LogitsWorkspaceBytes, aligned to 16
  std::byte* out = nullptr;             // aligned to 8
  float* kept = nullptr;  // [rows, num_slices * slice_width]; null where no job has one kept
};

// Elements of a slice that are looked at together; results of these segments go by way of the
// workspace.
constexpr int64_t kLogitsSegment = 4096;
constexpr int64_t LogitsSegments(int64_t slice_width, int num_slices) {
  return (slice_width + kLogitsSegment - 1) / kLogitsSegment * num_slices;
}
// A segment leaves its maximum and sum, f32 each, and 8 bytes for each of its largest.
constexpr int64_t LogitsWorkspaceBytes(int64_t slice_width, int num_slices, int num_jobs,
                                       int32_t max_largest) {
  return num_jobs * LogitsSegments(slice_width, num_slices) * 8 * (1 + int64_t{max_largest});
}

}  // namespace lockstep
