// How the rows of a call to DeviceChooser are cut into groups, which a device works on one after
// the other in the same memory, and what it is told of each.
//
// A group is rows that follow each other within the logits that are there at once. There must be
// copies of those whose choice may have to go on in a whole row (kept rows). Of several ranks, all
// gather all parts of them while these are short, which takes one exchange. Else the rows are dealt
// out: each rank chooses for its own, from the parts that all ranks send it, and tells the others.
// Everything that sizes what ranks exchange follows from the rows' parameters, so that it is the
// same on every rank. Pure but for the upload; one per thread; all memory is taken at Create.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/token_choice.h"
#include "model/sampling/device_input.h"
#include "model/sampling/device_summary.h"
#include "model/sampling/row_summary.h"
#include "parallel/communicator.h"
#include "parallel/partition.h"

namespace lockstep {

// Of a group; smaller ones are for tests.
struct ChoiceLimits {
  int64_t rows = 256;
  // Rows kept for the choices of one rank: 16 MB of a vocabulary of 128,256, and with several ranks
  // as much again. A group of several ranks has 32 * tp of them and moves at most
  // 16 MB * (tp - 1) / tp out of each rank, and as much into it. (If every rank gathered all rows,
  // tp times as much.)
  int64_t kept_rows = 32;
  // A rank's parts of rows that all ranks gather: a row of 128,256 of 2 ranks, 4 of 8 ranks.
  int64_t gathered_bytes = Communicator::kShortGatherBytes;
};

// Rows of a call with their shapes; of several ranks, alike on all.
struct ChoiceRows {
  std::span<const LogitsRow> rows;
  std::span<const RowShape> shapes;
  std::span<const int32_t> eos_token_ids;
};

// Pointers are the device's, whose copies have been issued.
struct ChoiceGroup {
  Range rows;  // of the call
  DeviceSummarizer::Packed summaries;
  int64_t raw_offset = 0;  // of its raw results among those of the call, [tp, bytes] for a group
  const TokenChoiceJob* jobs = nullptr;
  int num_jobs = 0;
  bool goes_on_here = false;  // a choice may go on in the logits themselves
  int64_t kept_rows = 0;      // of the rank that has most, or those that all gather
  bool gathers_kept = false;  // else they are dealt out, if there are several ranks
  // Of those dealt out: the choices, by the rank that makes them; where there are less than
  // num_shared, places that are nobody's. [tp, num_shared].
  const int32_t* places = nullptr;
  int64_t num_shared = 0;
};

class ChoiceGroups {
 public:
  struct Options {
    int64_t vocab_size = 0;
    int tp = 1;
    int tp_rank = 0;
    int64_t max_rows = 1;  // of a call
    ChoiceLimits limits = {};
  };
  // backend must outlive it. RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<ChoiceGroups>> Create(Backend& backend,
                                                              const Options& options);
  // Of the device, that this takes.
  static int64_t DeviceBytes(const Options& options);

  // Whether a row can be decided on the device; if not, it belongs to no job.
  bool TakesRow(const LogitsRow& row, const RowShape& shape,
                std::span<const int32_t> eos_token_ids) const;

  // ---- a call ----
  struct Memory {
    int64_t tile_rows = 1;                // logits that are there at once
    const ChosenToken* chosen = nullptr;  // as DeviceSummarizer::Pack takes it
    float* kept = nullptr;                // [tp, limits.kept_rows, part_width]
  };
  // rows must stay until the last group has been packed.
  void Begin(const ChoiceRows& rows, const Memory& memory);
  // The next groups, as many as go to the device in one copy, which is issued; none after the last.
  // The groups before them must have been issued.
  std::span<const ChoiceGroup> PackNext();

  // Of the rows packed so far.
  struct Row {
    int32_t place = -1;       // among those that choose; -1: not chosen by the device
    int64_t raw_offset = -1;  // of rank 0's raw results among all of the call; -1: there are none
    int64_t raw_stride = 0;   // from a rank's to the next one's
  };
  std::span<const Row> rows() const { return rows_; }
  bool took_all() const { return took_all_; }  // TakesRow
  int32_t num_choosing() const { return num_choosing_; }

  DeviceSummarizer& summaries() { return *summaries_; }
  const Options& options() const { return options_; }
  // A place that is nobody's is one of so many from max_rows on.
  static int64_t NumSparePlaces(const Options& options) { return options.tp; }

 private:
  explicit ChoiceGroups(const Options& options)
      : options_(options), num_kept_(static_cast<size_t>(options.tp)) {}
  // The most that there can be on any rank.
  int64_t NumAdjustments(const LogitsRow& row, const RowShape& shape,
                         std::span<const int32_t> eos_token_ids) const;
  int64_t TileEnd(int64_t row) const;
  bool FitsInput(int64_t row) const;
  bool FitsGroup(int64_t row) const;
  bool CanGatherKept(int64_t first, int64_t end) const;
  ChoiceGroup PackGroup();
  void AddRow(int64_t index);
  void AddJob(int64_t index, const DeviceSummarizer::Offsets& offsets);
  // Copies of the row that there must be.
  int64_t NumKept(int64_t index) const;
  bool MayGoOn(int64_t index) const;
  void Keep(int64_t num_kept, TokenChoiceJob& job);
  void PackPlaces(ChoiceGroup& group);
  int NextOwner() const { return static_cast<int>(kept_places_.size()) % options_.tp; }

  const Options options_;
  std::unique_ptr<DeviceSummarizer> summaries_;
  std::unique_ptr<DeviceInput> input_;

  // The call.
  ChoiceRows call_;
  Memory memory_;
  int64_t next_ = 0;
  std::vector<Row> rows_;
  int32_t num_choosing_ = 0;
  bool took_all_ = true;
  int64_t raw_end_ = 0;  // of all ranks' raw results up to the last group
  std::vector<ChoiceGroup> groups_;
  int64_t num_adjustments_ = 0;  // in the input, of any rank at most
  // The group that is packed.
  bool gathers_kept_ = false;
  std::vector<TokenChoiceJob> jobs_;
  std::vector<int32_t> kept_places_;  // of choices that are dealt out, by turns
  std::vector<int64_t> num_kept_;     // rows, by rank; those that all gather are rank 0's
  std::vector<int32_t> places_;
};

}  // namespace lockstep
