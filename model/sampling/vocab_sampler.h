// Chooses tokens from logits that lie spread over a tensor parallel group, and reports
// log-probabilities.
//
// Each rank summarises its part of the vocabulary: per slice (partition.h) the maximum and the sum
// of exponentials, and its largest candidates. One AllGather per call carries the summaries; then
// every rank makes the identical choice. Where the walk over candidates (token_choice.h) reaches
// the end of a list that was cut, the row's whole logits are gathered instead, with the identical
// result. So the choice depends on the logits alone: not on tp, nor on how many candidates travel.
//
// Log-probabilities are natural, of the raw logits: before bias, penalties and temperature. A token
// of probability 0 has -infinity and is never listed among the most likely. Logits that are NaN
// count as -infinity; when every logit is, the outcome is kNoToken. Called by the step loop's
// thread, by all ranks of the group with the same rows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/sampling/adjust_logits.h"
#include "model/sampling/sampling_params.h"
#include "parallel/communicator.h"

namespace lockstep {

// What a row of logits is for.
struct LogitsRow {
  const SamplingParams* params = nullptr;
  // Log-probabilities of a known prompt token, >= 0; or -1: choose a token, for which the rest is
  // read.
  int32_t prompt_target = -1;
  const TokenHistory* history = nullptr;  // over this rank's vocabulary range
  // Over the same; null: the sequence's output is not constrained. It must have been given the
  // sequence's last token when the row is begun, and not the next before it is finished.
  grammar::OutputMatcher* matcher = nullptr;
  // >= 0: the history lacks the sequence's last token, which is at this place among those that the
  // device chose last.
  int32_t uncounted = -1;
  // Guesses after what history and matcher have read, and before the position: another row chooses
  // at each of their places, and this one's choice is of use where those are the same.
  std::span<const int32_t> drafts = {};
  uint32_t sequence_index = 0;
  uint64_t position = 0;  // of the token to be chosen, in its sequence
  int32_t num_output_tokens = 0;
};

// Of a row for which a token is chosen.
inline OutputSoFar OutputOf(const LogitsRow& row, std::span<const int32_t> eos_token_ids) {
  return {.params = *row.params,
          .history = *row.history,
          .matcher = row.matcher,
          .drafts = row.drafts,
          .num_output_tokens = row.num_output_tokens,
          .eos_token_ids = eos_token_ids};
}

struct RowOutcome {
  int32_t token = 0;  // chosen (or kNoToken), or the prompt target
  bool has_logprobs = false;
  LogprobInfo logprobs;
};

struct SamplerOptions {
  int64_t vocab_size = 0;
  std::vector<int32_t> eos_token_ids;
  // Candidates a rank sends for a row without a smaller top_k. A row gathers whole logits when its
  // choice lies deeper.
  int num_candidates = 256;
};

// Logits on a device, which may be more than are there at once.
struct LogitsTiles {
  // Those of rows [first, first + count), f32 [count, VocabOf(this rank).size()], until the next
  // are asked for; first is a multiple of max_rows, count <= max_rows.
  absl::FunctionRef<absl::StatusOr<const float*>(int64_t first, int64_t count)> logits;
  int64_t max_rows = 1;
};

class DeviceChooser;  // model/sampling/device_choice.h

class VocabSampler {
 public:
  // tp and device must outlive the sampler. device, of the same vocabulary range: where the logits
  // lie; null: in the host's memory.
  VocabSampler(SamplerOptions options, Communicator& tp, DeviceChooser* device = nullptr);
  ~VocabSampler();

  // logits: f32 [rows.size(), VocabOf(this rank).size()]; with a device, on it, and no more rows
  // than it was made for. outcomes is overwritten, one per row.
  // Errors: those of the communicator.
  absl::Status Choose(std::span<const LogitsRow> rows, const float* logits,
                      std::vector<RowOutcome>& outcomes);

  // With a device, the same in two parts, neither of which the host waits in unless it must. Rows
  // are finished in the order in which they were begun; at most DeviceChooser::kMaxInFlight calls
  // are not. What rows point to is read by Finish, too, unless DecidesAll: then nothing more is
  // begun before it. Several tiles only if WouldDecideAll.
  absl::Status Begin(std::span<const LogitsRow> rows, const LogitsTiles& tiles);
  absl::Status Begin(std::span<const LogitsRow> rows, const float* logits);
  // Whether rows need nothing of the host, whatever their logits are: these, or those begun last.
  // The same on every rank.
  bool WouldDecideAll(std::span<const LogitsRow> rows);
  bool DecidesAll() const;
  // Finish for the oldest rows would not wait.
  bool IsDone();
  absl::Status Finish(std::vector<RowOutcome>& outcomes);

  Range vocab() const;                      // this rank's
  int64_t num_whole_rows_gathered() const;  // since construction

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
