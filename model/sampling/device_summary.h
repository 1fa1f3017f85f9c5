// Records of rows whose logits lie on a device, which summarises them there
// (Backend::SummarizeLogits): some KB a row come to the host, not the row.
//
// What RowSummarizer would have written but for the sums of exponentials, which may differ by their
// rounding. Rows that ask for more than the device gives are left to the host: those with more than
// kMaxLargestLogits candidates, or with adjustments of more tokens than fit. One per thread; all
// memory is taken at Create.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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
  // SummarizesLogits, must outlive it. health: what has ended the groups whose exchanges the logits
  // depend on (Communicator::Health of the device's groups); null: nothing can. RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<DeviceSummarizer>> Create(
      Backend& backend, int64_t vocab_size, int tp, int tp_rank, int64_t max_rows,
      std::function<absl::Status()> health = nullptr);

  // Begins anew with logits [rows, vocab] on the device.
  void Begin(const float* logits);
  // False: row `index` must be summarised on the host.
  bool Add(int64_t index, const LogitsRow& row, const RowShape& shape,
           std::span<const int32_t> eos_token_ids);
  // Summarises all that were added, and waits for it.
  void Run();
  // Not OK: the logits that Run read are undefined.
  absl::Status Health() const { return health_ == nullptr ? absl::OkStatus() : health_(); }
  // Of a row that was added, after Run.
  void Fill(int64_t index, const RowShape& shape, RowRecord& record) const;

  // A row's logits on the host, until the next call.
  std::span<const float> Fetch(int64_t index);

 private:
  // Where a row's results lie among those of the call; -1: there are none.
  struct Offsets {
    int64_t processed = -1;
    int64_t raw = -1;
  };

  DeviceSummarizer(Backend& backend, int64_t vocab_size, int tp, int tp_rank, int64_t max_rows);
  absl::Status Allocate();
  absl::Status WarmUp();
  int64_t AddJob(LogitsJob job);
  void FillChoice(const std::byte* result, const RowShape& shape, RowRecord& record) const;
  void FillRaw(const std::byte* result, const RowShape& shape, RowRecord& record) const;

  Backend& backend_;
  std::function<absl::Status()> health_;
  const int64_t max_rows_;
  const int num_slices_;
  const int64_t slice_width_;
  const Range vocab_;

  // On the device and, of the host, the same: jobs, then adjustments; results.
  DeviceBuffer input_;
  DeviceBuffer results_;
  DeviceBuffer host_results_;
  DeviceBuffer host_row_;
  DeviceBuffer workspace_;

  const float* logits_ = nullptr;
  std::vector<LogitsJob> jobs_;
  std::vector<LogitAdjustment> adjustments_;
  std::vector<std::byte> host_input_;
  std::vector<Offsets> offsets_;  // by row
  int32_t max_largest_ = 0;       // of jobs_
  int64_t result_bytes_ = 0;      // of jobs_
};

}  // namespace lockstep
