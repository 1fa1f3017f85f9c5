// Tokens chosen where the logits lie (Backend::ChooseTokens): nothing waits for the host, and only
// what was chosen comes to it, with what log-probabilities are told from.
//
// The ranks of a tensor parallel group exchange their summaries between the devices, then each
// makes the same choice as VocabSampler would on the host. Where a summary might end too early, the
// choice goes on in the whole row: where it lies if that is one rank's and not adjusted, else in a
// copy, which with several ranks all make out of all ranks' parts, or, of many rows, one of them
// makes to choose for all. Any number is decided, group by group (model/sampling/choice_groups.h).
// Only rows with adjustments of more tokens than a group takes stay undecided, on every rank alike.
// One per thread; all memory is taken at Create, which also runs every kernel once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/token_choice.h"
#include "model/sampling/choice_groups.h"
#include "parallel/communicator.h"

namespace lockstep {

struct DeviceChooserOptions {
  // What has ended the groups whose exchanges logits and choices depend on (Communicator::Health);
  // null: nothing can.
  std::function<absl::Status()> health = nullptr;
  ChoiceLimits limits = {};
};

class DeviceChooser {
 public:
  // Calls that were issued and not waited for.
  static constexpr int kMaxInFlight = 2;

  // For this rank of `tp`, whose calls take pointers of backend and are ordered with its kernels;
  // calls of at most max_rows rows, for each of which there is pinned memory of all ranks' raw
  // results, twice: 376 bytes of one rank, 2112 of 8. backend, which SummarizesLogits, and tp must
  // outlive it. RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<DeviceChooser>> Create(
      Backend& backend, int64_t vocab_size, Communicator& tp, int64_t max_rows,
      const DeviceChooserOptions& options = {});

  // Rows of a step within such limits: some are of steps that run ahead, and more than there are
  // sequences come with log-probabilities of prompts alone.
  static int64_t MaxRows(int64_t max_batched_tokens, int64_t max_num_seqs);
  // Of the device, that this takes.
  static int64_t DeviceBytes(const ChoiceGroups::Options& options);

  int64_t max_rows() const { return max_rows_; }
  // Forgets calls that were issued: whoever did has ended.
  void Forget() { num_done_ = num_issued_; }

  // Whether they may be one call's and all rows will be decided, whatever their logits are. The
  // same on every rank.
  bool DecidesAll(const ChoiceRows& rows) const;

  // ---- a call ----
  // Chooses from logits [rows, vocab] on the device, a tile at a time, without waiting. Errors: the
  // group's, and those of tiles.
  absl::Status Issue(const ChoiceRows& rows, const LogitsTiles& tiles);
  // Of the call issued last, the rows that choose, in their order, once its work is done. The next
  // call's work, which may read them, leaves them alone; that of the one after it does not.
  const ChosenToken* chosen_on_device() const { return ChosenOf(num_issued_ - 1); }
  // Whether it decides all rows.
  bool decides_all() const { return decides_all_; }

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

  DeviceSummarizer& summaries() { return groups_->summaries(); }

 private:
  struct Call {
    std::vector<ChoiceGroups::Row> rows;
    DeviceBuffer chosen;   // on the device: [max_rows, and places that are nobody's]
    DeviceBuffer results;  // of the host: chosen [max_rows], raw results by group, [tp, bytes]
    std::unique_ptr<WorkMark> mark;
  };

  DeviceChooser(Backend& backend, int64_t vocab_size, Communicator& tp, int64_t max_rows,
                const DeviceChooserOptions& options);
  absl::Status Allocate();
  absl::Status WarmUp();
  absl::Status IssueGroup(const ChoiceGroup& group, const float* logits, Call& call);
  // But for where the choices go. summaries: of all ranks.
  TokenChoiceArgs ChoiceArgs(const ChoiceGroup& group, const std::byte* summaries,
                             const float* logits);
  absl::StatusOr<const std::byte*> GatherSummaries(const ChoiceGroup& group);
  absl::Status ExchangeKept(const ChoiceGroup& group);
  // The choices that ranks have made from kept rows, to all of them.
  absl::Status ShareChoices(const ChoiceGroup& group, ChosenToken* chosen);
  void StartRawCopies(const ChoiceGroup& group, const std::byte* summaries, Call& call);
  int64_t chosen_bytes() const { return max_rows_ * int64_t{sizeof(ChosenToken)}; }
  static size_t IndexOf(int64_t number) {
    return static_cast<size_t>((number + kMaxInFlight) % kMaxInFlight);
  }
  const ChosenToken* ChosenOf(int64_t number) const {
    return calls_[IndexOf(number)].chosen.as<ChosenToken>();
  }
  const Call& last_done() const { return calls_[IndexOf(num_done_ - 1)]; }
  Call& oldest();

  Backend& backend_;
  Communicator& tp_;
  const DeviceChooserOptions options_;
  const int64_t vocab_size_;
  const int64_t max_rows_;
  std::unique_ptr<ChoiceGroups> groups_;
  // This rank's parts of the rows that each rank keeps: [tp, limits.kept_rows, part_width].
  DeviceBuffer kept_;
  // Of several ranks only: every rank's summaries; its parts of the rows that this rank keeps, as
  // kept_, or of those that all gather, [tp, ChoiceGroup::kept_rows, part_width]; choices,
  // [tp, ChoiceGroup::num_shared].
  DeviceBuffer gathered_;
  DeviceBuffer received_;
  DeviceBuffer shared_;
  Call calls_[kMaxInFlight];
  int64_t num_issued_ = 0;
  int64_t num_done_ = 0;
  bool decides_all_ = true;
};

}  // namespace lockstep
