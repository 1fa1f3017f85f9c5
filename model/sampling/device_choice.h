// Tokens chosen where the logits lie (Backend::ChooseTokens): nothing waits for the host, and only
// what was chosen comes to it, with what log-probabilities are told from.
//
// The ranks of a tensor parallel group exchange their summaries between the devices, then each
// makes the same choice as VocabSampler would on the host. Where a summary might end too early, the
// choice goes on in the whole row: where it lies if that is one rank's and not adjusted, else in a
// copy, which ranks exchange as well. Rows that ask for more than the device gives stay undecided,
// on every rank alike. One per thread; all memory is taken at Create.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/token_choice.h"
#include "model/sampling/device_summary.h"
#include "model/sampling/row_summary.h"
#include "parallel/communicator.h"

namespace lockstep {

class DeviceChooser {
 public:
  // Calls that were issued and not waited for.
  static constexpr int kMaxInFlight = 2;
  // Copies of rows in a call, 16 MiB for a vocabulary of 128,256 on every rank. To exchange more
  // takes longer than to have the host choose from those few that need it.
  static constexpr int64_t kMaxKeptRows = 32;

  // For this rank of `tp`, whose calls take pointers of backend and are ordered with its kernels;
  // at most max_rows rows at once. backend, which SummarizesLogits, and tp must outlive it. health:
  // what has ended the groups whose exchanges logits and choices depend on (Communicator::Health);
  // null: nothing can. RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<DeviceChooser>> Create(
      Backend& backend, int64_t vocab_size, Communicator& tp, int64_t max_rows,
      std::function<absl::Status()> health = nullptr);

  // Forgets calls that were issued: whoever did has ended.
  void Forget() { num_done_ = num_issued_; }

  // ---- a call ----
  // Begins anew with logits [rows, vocab] on the device.
  void Begin(const float* logits);
  // The next row.
  void Add(const LogitsRow& row, const RowShape& shape, std::span<const int32_t> eos_token_ids);
  // Whether all that were added will be decided, whatever their logits are. The same on every rank.
  bool decides_all() const { return decides_all_; }
  // Without waiting. Errors: the group's.
  absl::Status Issue();
  // Of the rows that choose, in their order, once the last call's work is done.
  const ChosenToken* chosen_on_device() const { return chosen_.as<ChosenToken>(); }

  // ---- the oldest call in flight ----
  bool IsDone() { return oldest().mark->IsReached(); }
  // Takes it out of flight; its results stay until as many others have been issued as may be in
  // flight. Not OK: they are undefined.
  absl::Status Wait();

  // ---- results of the call waited for last ----
  // Of row `index`, which chooses; nullopt: undecided.
  std::optional<ChosenToken> Chosen(int64_t index) const;
  // For rows that choose not, or want log-probabilities; null: left to the host. As
  // DeviceSummarizer::FillRaw takes it.
  const std::byte* RawResult(int64_t index, int rank) const;

  // Of the rows of the call issued last.
  bool has_summary(int64_t index) const { return has_summary_[static_cast<size_t>(index)]; }
  DeviceSummarizer& summaries() { return *summaries_; }

 private:
  struct Row {
    int32_t place = -1;       // among the chosen; -1: not chosen by the device
    int64_t raw_offset = -1;  // -1: there is none
  };
  struct Call {
    std::vector<Row> rows;
    int64_t raw_bytes = 0;  // of a rank
    DeviceBuffer results;   // of the host: chosen [max_rows], raw results [tp, raw_bytes]
    std::unique_ptr<WorkMark> mark;
  };

  DeviceChooser(Backend& backend, int64_t vocab_size, Communicator& tp, int64_t max_rows,
                std::function<absl::Status()> health);
  absl::Status Allocate();
  absl::Status AllocateForRanks();
  void AddJob(int64_t index, const LogitsRow& row, const RowShape& shape, int32_t place);
  // Whether the last row's adjustments have room on every rank.
  bool FitsAdjustments(const LogitsRow& row, const RowShape& shape,
                       std::span<const int32_t> eos_token_ids);
  // Whether its summary may end before the choice is certain.
  bool MayGoOn(const LogitsRow& row, const RowShape& shape) const;
  // False: it may not be kept.
  bool LetGoOn(int64_t index, const RowShape& shape);
  void KeepNone();
  float* kept_here() const {
    return kept_.as<float>() + tp_.rank() * num_kept_ * summaries_->part_width();
  }
  absl::StatusOr<const std::byte*> GatherSummaries();
  absl::Status GatherKept();
  void StartCopies(Call& call, const std::byte* summaries);
  Call& call(int64_t number) { return calls_[static_cast<size_t>(number % kMaxInFlight)]; }
  Call& oldest();

  Backend& backend_;
  Communicator& tp_;
  const std::function<absl::Status()> health_;
  const int64_t vocab_size_;
  const int64_t max_rows_;
  std::unique_ptr<DeviceSummarizer> summaries_;
  DeviceBuffer gathered_;  // every rank's summaries; of several ranks only
  DeviceBuffer kept_;      // every rank's rows: [tp, num_kept_, part_width]
  DeviceBuffer chosen_;    // [max_rows]
  Call calls_[kMaxInFlight];
  int64_t num_issued_ = 0;
  int64_t num_done_ = 0;

  // The call that begins.
  std::vector<Row> rows_;
  std::vector<TokenChoiceJob> jobs_;
  std::vector<bool> has_summary_;
  const float* logits_ = nullptr;
  int32_t num_choosing_ = 0;
  int32_t num_kept_ = 0;
  int64_t most_adjustments_ = 0;  // of any rank
  bool decides_all_ = true;
};

}  // namespace lockstep
