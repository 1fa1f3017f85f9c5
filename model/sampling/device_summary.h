// Summaries of rows whose logits lie on a device, made there (Backend::SummarizeLogits), and
// records of them.
//
// What RowSummarizer would have written but for the sums of exponentials, which may differ by their
// rounding, and candidates beyond kMaxLargestLogits. One group of rows after the other, each into
// the memory of the one before. One per thread; all memory is taken at Create.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/logits_summary.h"
#include "model/sampling/device_input.h"
#include "model/sampling/row_summary.h"
#include "parallel/partition.h"

namespace lockstep {

class DeviceSummarizer {
 public:
  // For a rank's part of the vocabulary, at most max_rows rows in a group. backend, which
  // SummarizesLogits, must outlive it. RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<DeviceSummarizer>> Create(Backend& backend,
                                                                  int64_t vocab_size, int tp,
                                                                  int tp_rank, int64_t max_rows);

  // Of the device, that this takes.
  static int64_t DeviceBytes(int64_t vocab_size, int tp, int64_t max_rows);

  // ---- a group of rows ----
  void Begin();
  // Of a row's candidates.
  static int32_t NumLargest(const RowShape& shape) {
    return std::min(shape.num_candidates, kMaxLargestLogits);
  }
  // Where the results of a row lie, within their part; -1: there are none.
  struct Offsets {
    int64_t processed = -1;
    int64_t raw = -1;
  };
  // Of all rows of a group together.
  static constexpr int64_t kMaxAdjustments = 256 << 10;
  // A row that is number `index` of the logits.
  Offsets Add(int64_t index, const LogitsRow& row, const RowShape& shape,
              std::span<const int32_t> eos_token_ids);
  // The row added last, which chooses, becomes row `kept` of those that are kept; where raw_kept
  // >= 0, which only rows that want log-probabilities have, its raw logits that one.
  void Keep(int32_t kept, int32_t raw_kept);

  // A group in the input; its results are laid out the same on every rank, first those of raw
  // logits.
  struct Packed {
    LogitsSummaryArgs args;  // but for the logits
    int64_t raw_bytes = 0;
    int64_t bytes = 0;  // with them
  };
  // chosen: on the device, tokens that the histories of rows may lack. kept: on the device,
  // [rows, part_width()].
  Packed Pack(DeviceInput& input, const ChosenToken* chosen = nullptr, float* kept = nullptr);
  // Of groups of so many rows together, without their adjustments.
  static constexpr int64_t InputBytes(int64_t num_rows) {
    constexpr int64_t kJobsPerRow = 2;  // what is chosen from, and the model's own probabilities
    return kJobsPerRow * num_rows * int64_t{sizeof(LogitsJob)};
  }

  // Summarises a group whose input has been uploaded, without waiting. logits: [rows, vocab] on the
  // device.
  void Issue(const Packed& group, const float* logits);
  // On the device, of the group issued last.
  const std::byte* results() const { return results_.as<std::byte>(); }

  int num_slices() const { return num_slices_; }
  int64_t part_width() const { return slice_width_ * num_slices_; }  // of every rank

  // Of results of raw logits by whichever rank, whose part begins with first_token.
  void FillRaw(const std::byte* result, const RowShape& shape, int64_t first_token,
               RowRecord& record) const;

  // A row's logits on the host, until the next call.
  std::span<const float> Fetch(const float* logits, int64_t index);

 private:
  DeviceSummarizer(Backend& backend, int64_t vocab_size, int tp, int tp_rank, int64_t max_rows);
  absl::Status Allocate();
  int64_t AddChoice(int64_t index, const LogitsRow& row, const RowShape& shape,
                    std::span<const int32_t> eos_token_ids);
  int64_t AddRaw(int64_t index, const LogitsRow& row, const RowShape& shape);
  int64_t AddJob(LogitsJob job, std::vector<LogitsJob>& jobs, int64_t& bytes);

  static int64_t ResultBytes(int num_slices, int64_t max_rows);
  static int64_t WorkspaceBytes(int64_t slice_width, int num_slices, int64_t max_rows);

  Backend& backend_;
  const int64_t max_rows_;
  const int num_slices_;
  const int64_t slice_width_;
  const Range vocab_;

  DeviceBuffer results_;
  DeviceBuffer host_row_;
  DeviceBuffer workspace_;

  // The group that begins.
  std::vector<LogitsJob> raw_jobs_;
  std::vector<LogitsJob> processed_jobs_;
  std::vector<LogitAdjustment> adjustments_;
  int32_t max_largest_ = 0;  // of the jobs
  int64_t raw_bytes_ = 0;    // of their results
  int64_t processed_bytes_ = 0;
};

}  // namespace lockstep
