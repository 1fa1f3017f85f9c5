// Finds the first stop string in text that arrives in pieces. Pure; the result does not depend on
// where pieces end.
//
// The match is the one that is complete first; of those that end together, the longest. Text that
// could still become part of a match is held back.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

class StopMatcher {
 public:
  // stops: non-empty strings; none = everything passes. include: the match stays in the text.
  StopMatcher(std::vector<std::string> stops, bool include);

  // Text that became certain. After a match: the text up to it, then always empty.
  std::string Add(std::string_view delta);
  // What is held back, when the text ends without a match.
  std::string Finish();

  // The stop string found.
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  struct Match {
    size_t begin;
    size_t end;
    size_t stop;
  };
  std::optional<Match> FindFirst() const;
  size_t HeldBackBytes() const;

  std::vector<std::string> stops_;
  bool include_;
  std::string held_;  // not yet certain
  std::optional<std::string> matched_;
};

}  // namespace lockstep
