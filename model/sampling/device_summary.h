// Summaries of rows whose logits lie on a device, made there (Backend::SummarizeLogits), and
// records of them.
//
// What RowSummarizer would have written but for the sums of exponentials, which may differ by their
// rounding, and candidates beyond kMaxLargestLogits. Rows with adjustments of more tokens than fit
// are left to the host. One per thread; all memory is taken at Create.
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
#include "model/sampling/row_summary.h"
#include "parallel/partition.h"

namespace lockstep {

class DeviceSummarizer {
 public:
  // For a rank's part of the vocabulary, at most max_rows rows at once. backend, which
  // SummarizesLogits, must outlive it. RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<DeviceSummarizer>> Create(Backend& backend,
                                                                  int64_t vocab_size, int tp,
                                                                  int tp_rank, int64_t max_rows);

  // Begins anew with logits [rows, vocab] on the device; so are the tokens chosen last, where a
  // row's history lacks its own.
  void Begin(const float* logits, const ChosenToken* chosen = nullptr);
  // Of a row's candidates.
  static int32_t NumLargest(const RowShape& shape) {
    return std::min(shape.num_candidates, kMaxLargestLogits);
  }
  // False: row `index` must be summarised on the host.
  bool Add(int64_t index, const LogitsRow& row, const RowShape& shape,
           std::span<const int32_t> eos_token_ids);
  // Of all rows of a call together.
  static constexpr int64_t kMaxAdjustments = 256 << 10;
  // The row added last, which chooses, becomes row `kept` of those that Issue keeps; where raw_kept
  // >= 0, which only rows that want log-probabilities have, its raw logits that one.
  void Keep(int32_t kept, int32_t raw_kept);
  void KeepNone();

  // Summarises all that were added, without waiting. `beside` goes to the device in the same copy;
  // where it lies there. A multiple of 8 bytes, at most kMaxBytesBeside for each of max_rows. kept:
  // on the device, [rows, part_width()].
  const std::byte* Issue(std::span<const std::byte> beside = {}, float* kept = nullptr);
  static constexpr int64_t kMaxBytesBeside = 64;

  // After Issue: results on the device, laid out the same on every rank; first those of raw logits.
  const std::byte* results() const { return results_.as<std::byte>(); }
  int64_t result_bytes() const { return raw_bytes_ + processed_bytes_; }
  int64_t raw_bytes() const { return raw_bytes_; }
  // Where those of a row lie, within their part; -1: there are none.
  struct Offsets {
    int64_t processed = -1;
    int64_t raw = -1;
  };
  const Offsets& offsets(int64_t index) const { return offsets_[static_cast<size_t>(index)]; }
  int num_slices() const { return num_slices_; }
  int64_t part_width() const { return slice_width_ * num_slices_; }  // of every rank

  // Waits for the results.
  void Read();
  // Of a row that was added, after Read.
  void Fill(int64_t index, const RowShape& shape, RowRecord& record) const;
  // Of results of raw logits by whichever rank, whose part begins with first_token.
  void FillRaw(const std::byte* result, const RowShape& shape, int64_t first_token,
               RowRecord& record) const;

  // A row's logits on the host, until the next call.
  std::span<const float> Fetch(int64_t index);

 private:
  DeviceSummarizer(Backend& backend, int64_t vocab_size, int tp, int tp_rank, int64_t max_rows);
  absl::Status Allocate();
  absl::Status WarmUp();
  bool AddChoice(int64_t index, const LogitsRow& row, const RowShape& shape,
                 std::span<const int32_t> eos_token_ids);
  void AddRaw(int64_t index, const LogitsRow& row, const RowShape& shape);
  int64_t AddJob(LogitsJob job, std::vector<LogitsJob>& jobs, int64_t& bytes);
  template <typename T>
  const std::byte* Append(std::span<const T> values);
  void FillChoice(const std::byte* result, const RowShape& shape, RowRecord& record) const;

  Backend& backend_;
  const int64_t max_rows_;
  const int num_slices_;
  const int64_t slice_width_;
  const Range vocab_;

  DeviceBuffer input_;  // what goes beside jobs, jobs, adjustments
  DeviceBuffer results_;
  DeviceBuffer host_results_;
  DeviceBuffer host_row_;
  DeviceBuffer workspace_;

  const float* logits_ = nullptr;
  const ChosenToken* chosen_ = nullptr;
  std::vector<LogitsJob> raw_jobs_;
  std::vector<LogitsJob> processed_jobs_;
  std::vector<LogitAdjustment> adjustments_;
  std::vector<Offsets> offsets_;  // by row
  int32_t max_largest_ = 0;       // of the jobs
  int64_t raw_bytes_ = 0;         // of their results
  int64_t processed_bytes_ = 0;
  std::vector<std::byte> host_input_;  // what input_ will hold
};

}  // namespace lockstep
