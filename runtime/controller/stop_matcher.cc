#include "runtime/controller/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace lockstep {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include)
    : stops_(std::move(stops)), include_(include) {}

std::string StopMatcher::Add(std::string_view delta) {
  if (matched_) return "";
  if (stops_.empty()) return std::string(delta);
  held_.append(delta);
  if (const std::optional<Match> match = FindFirst()) {
    matched_ = stops_[match->stop];
    std::string certain = held_.substr(0, include_ ? match->end : match->begin);
    held_.clear();
    return certain;
  }
  const size_t num_certain = held_.size() - HeldBackBytes();
  std::string certain = held_.substr(0, num_certain);
  held_.erase(0, num_certain);
  return certain;
}

std::string StopMatcher::Finish() { return std::exchange(held_, ""); }

std::optional<StopMatcher::Match> StopMatcher::FindFirst() const {
  std::optional<Match> first;
  for (size_t i = 0; i < stops_.size(); ++i) {
    const size_t begin = held_.find(stops_[i]);
    if (begin == std::string::npos) continue;
    const Match match{begin, begin + stops_[i].size(), i};
    const bool better =
        !first || match.end < first->end || (match.end == first->end && match.begin < first->begin);
    if (better) first = match;
  }
  return first;
}

// The longest end of held_ that is a proper beginning of a stop string.
size_t StopMatcher::HeldBackBytes() const {
  const std::string_view held = held_;
  size_t longest = 0;
  for (const std::string_view stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held.size()); n > longest; --n) {
      if (held.substr(held.size() - n) == stop.substr(0, n)) longest = n;
    }
  }
  return longest;
}

}  // namespace lockstep
