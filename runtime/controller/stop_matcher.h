// Finds the first stop string in text that arrives in pieces. Pure; the result does not depend on
// where pieces end. Used by one thread at a time.
//
// The match is the one that is complete first; of those that end together, the longest. Text that
// could still become part of a match is held back. Linear in the text for each stop string, since
// clients choose both: one Knuth-Morris-Pratt automaton per stop (SIAM J. Comput. 6(2), 1977).
// Their states also say how much to hold back: the most that any of them has matched.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

class StopMatcher {
 public:
  // stops: non-empty strings; none = everything passes. include: the match stays in the text.
  StopMatcher(std::vector<std::string> stops, bool include);

  // Text that became certain. After a match: the text up to it, then always empty. may_match: one
  // may end within this piece.
  std::string Add(std::string_view delta, bool may_match = true);
  // What is held back, when the text ends without a match.
  std::string Finish();

  // The stop string found.
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  class Automaton {
   public:
    explicit Automaton(std::string stop);
    // True if the stop string ends with this byte.
    bool Advance(char byte);
    // How many bytes at the text's end are the stop string's beginning.
    size_t num_matched() const { return num_matched_; }
    const std::string& stop() const { return stop_; }

   private:
    std::string stop_;
    std::vector<size_t> border_;  // [n]: longest proper prefix of stop_[0, n] that is also its end
    size_t num_matched_ = 0;
  };

  // The longest stop string that ends with this byte, if any.
  const std::string* Advance(char byte);

  std::vector<Automaton> automata_;
  bool include_;
  std::string held_;  // not yet certain
  std::optional<std::string> matched_;
};

}  // namespace lockstep
