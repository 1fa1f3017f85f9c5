#include "runtime/controller/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"

namespace lockstep {

StopMatcher::Automaton::Automaton(std::string stop) : stop_(std::move(stop)) {
  LS_CHECK(!stop_.empty());
  border_.resize(stop_.size(), 0);
  for (size_t n = 1; n < stop_.size(); ++n) {
    size_t border = border_[n - 1];
    while (border > 0 && stop_[border] != stop_[n]) border = border_[border - 1];
    border_[n] = stop_[border] == stop_[n] ? border + 1 : 0;
  }
}

bool StopMatcher::Automaton::Advance(char byte) {
  while (num_matched_ > 0 && stop_[num_matched_] != byte) num_matched_ = border_[num_matched_ - 1];
  if (stop_[num_matched_] == byte) ++num_matched_;
  if (num_matched_ < stop_.size()) return false;
  num_matched_ = border_.back();
  return true;
}

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include) : include_(include) {
  automata_.reserve(stops.size());
  for (std::string& stop : stops) automata_.emplace_back(std::move(stop));
}

const std::string* StopMatcher::Advance(char byte) {
  const std::string* longest = nullptr;
  for (Automaton& automaton : automata_) {
    const bool ends = automaton.Advance(byte);
    if (ends && (longest == nullptr || automaton.stop().size() > longest->size())) {
      longest = &automaton.stop();
    }
  }
  return longest;
}

std::string StopMatcher::Add(std::string_view delta, bool may_match) {
  if (matched_) return "";
  for (size_t i = 0; i < delta.size(); ++i) {
    const std::string* stop = Advance(delta[i]);
    if (stop == nullptr || !may_match) continue;
    matched_ = *stop;
    std::string certain = std::exchange(held_, "");
    certain.append(delta.substr(0, i + 1));
    if (!include_) certain.resize(certain.size() - stop->size());
    return certain;
  }
  size_t num_held = 0;
  for (const Automaton& automaton : automata_) {
    num_held = std::max(num_held, automaton.num_matched());
  }
  std::string certain = std::exchange(held_, "");
  certain.append(delta);
  held_ = certain.substr(certain.size() - num_held);
  certain.resize(certain.size() - num_held);
  return certain;
}

std::string StopMatcher::Finish() { return std::exchange(held_, ""); }

}  // namespace lockstep
