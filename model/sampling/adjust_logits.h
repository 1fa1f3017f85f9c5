// From raw to processed logits: bias, penalties, the minimum length. Pointwise, so a rank does its
// own part of the vocabulary.
//
// In this order, per token: raw (NaN becomes -infinity, +infinity the largest finite number); +
// logit_bias; repetition penalty for tokens in prompt or output (positive values divided, others
// multiplied); - frequency_penalty * its count in the output;
// - presence_penalty when it is in the output; -infinity for end-of-sequence (unless ignore_eos)
// and stop tokens while the output is shorter than min_tokens, and for tokens that the output's
// constraint does not allow.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kernels/logits_summary.h"
#include "model/grammar/token_masks.h"
#include "model/sampling/sampling_params.h"
#include "parallel/partition.h"

namespace lockstep {

// Which tokens of its vocabulary range a sequence has seen, and how often in its output. Stays
// empty, and costs nothing, for parameters without penalties. Owned by the sequence's slot, used by
// the step loop's thread.
class TokenHistory {
 public:
  struct Entry {
    int32_t token = 0;
    int32_t num_outputs = 0;  // 0: only in the prompt
  };

  // Forgets everything and starts a sequence.
  void Reset(const SamplingParams& params, Range vocab);
  void AddPrompt(std::span<const int32_t> tokens);
  void AddOutput(int32_t token);
  std::span<const Entry> entries() const { return entries_; }
  // As it would be after these outputs, too.
  std::vector<Entry> EntriesAfter(std::span<const int32_t> outputs) const;
  // Different ones in the prompt, of the whole vocabulary, as far as the parameters ask for them.
  // The same on every rank.
  int64_t num_prompt_tokens() const { return num_prompt_tokens_; }

 private:
  Entry* Find(int32_t token);  // null when the token is not tracked here

  bool tracks_prompt_ = false;
  bool tracks_output_ = false;
  int64_t num_prompt_tokens_ = 0;
  Range vocab_;
  std::vector<Entry> entries_;
  absl::flat_hash_map<int32_t, int32_t> index_;  // token -> entry
};

// On what the changes depend.
struct OutputSoFar {
  const SamplingParams& params;
  const TokenHistory& history;  // over the rank's vocabulary range
  // Of an output that is constrained, over the same range; else null. Asked for what it allows when
  // logits are adjusted.
  grammar::OutputMatcher* matcher = nullptr;
  // Tokens after those that both have read, which may yet turn out not to be the output's.
  std::span<const int32_t> drafts = {};
  int32_t num_output_tokens = 0;  // with drafts
  std::span<const int32_t> eos_token_ids;
};

// Would AdjustLogits change anything for some vocabulary range? The same on every rank.
bool NeedsAdjusting(const SamplingParams& params, int32_t num_output_tokens,
                    std::span<const int32_t> eos_token_ids);

// row: this rank's logits, row[i] belongs to token vocab.begin + i.
void AdjustLogits(std::span<float> row, Range vocab, const OutputSoFar& output);

// The same as a list for Backend::SummarizeLogits: appended to `adjustments`, and described in job.
void ListAdjustments(Range vocab, const OutputSoFar& output,
                     std::vector<LogitAdjustment>& adjustments, LogitsJob& job);

// The most that ListAdjustments appends on any rank, whose part of the vocabulary has at most
// part_width tokens. The same on every rank, also while some have not read their last token yet.
int64_t MostAdjustments(const OutputSoFar& output, int64_t part_width);

}  // namespace lockstep
