// Guesses an output's next tokens from what was written before: after a few tokens that are there
// twice, what followed the first time follows again (prompt lookup: A. Saxena 2023; what vLLM calls
// ngram). Answers that quote their prompt, rewrite code or list things go several tokens a step
// then, and those that are like earlier ones (output_history.h). The client may have a prediction
// of the output; it is looked through as well, and before the output has begun, it is the guess.
//
// A guess costs a step the rows that compute it, never a token: ranks choose at every place as if
// it were not there, and what differs is dropped. So guesses may be wrong, but not for long: their
// number follows those that came true, and after some that did not there is a pause.
//
// Pure; one per output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/engine/output_history.h"

namespace lockstep::engine {

// What can be quoted. Where two places are as good, the first of these is preferred.
struct DraftSources {
  std::span<const int32_t> prediction;
  std::span<const int32_t> tokens;  // prompt, then output: known
  HistoryView history = {};         // what other outputs said
};

class Drafter {
 public:
  static constexpr size_t kShortestMatch = 2;  // tokens that must be the same
  static constexpr size_t kLongestMatch = 8;   // and from which on no better one is looked for
  static constexpr size_t kLongestWalk = size_t{1} << 15;  // back from where a text ends
  static constexpr size_t kLongestRest = 4;

  // Of an output after a prompt of so many tokens.
  explicit Drafter(size_t num_prompt_tokens) : num_followed_(num_prompt_tokens) {}

  // Reads known tokens that it has not seen, and looks for a place to quote from unless it is at
  // one. Costs their number, or where it looks a walk over the texts: 12 us for each kLongestWalk;
  // after walks that found nothing some tokens are left out, at most kLongestRest.
  void Follow(const DraftSources& sources);
  // What it proposes was said by others: who asked is not told what came of it.
  bool quotes_others() const { return place_ && place_->source == Source::kHistory; }
  // Has something to propose after the tokens followed last.
  bool is_ready() const { return place_.has_value() && pause_ == 0; }
  // At most `most` tokens, and no more than it trusts its place for.
  std::vector<int32_t> Propose(const DraftSources& sources, int most) const;
  // Of `num_drafts` tokens proposed, so many came true. Before those that did are followed.
  void Learn(int num_drafts, int num_accepted);

 private:
  enum class Source { kPrediction, kTokens, kHistory };
  struct Place {
    Source source = Source::kTokens;
    uint64_t next = 0;  // the token expected
  };

  void Look(const DraftSources& sources);
  static std::optional<Place> Find(const DraftSources& sources);
  // What is written there from the place on; nothing where that has been forgotten.
  static std::span<const int32_t> TextFrom(const DraftSources& sources, const Place& place);

  std::optional<Place> place_;
  size_t num_followed_;
  bool has_begun_ = false;
  int trusted_ = 4;               // tokens of the next proposal
  int num_misses_ = 0;            // proposals in a row of which nothing came true
  size_t pause_ = 0;              // tokens until it proposes, or looks, again
  size_t num_walks_in_vain_ = 0;  // in a row
};

}  // namespace lockstep::engine
