#include "model/grammar/text_automaton.h"

#include <algorithm>
#include <bitset>

#include "kernels/base/check.h"

namespace lockstep::grammar {

TextAutomaton::TextAutomaton(Grammar grammar, int32_t max_states)
    : grammar_(std::move(grammar)), max_states_(max_states) {
  LS_CHECK_GE(max_states, 1);
  FindClasses();
}

void TextAutomaton::FindClasses() {
  std::bitset<257> begins;  // a class that the byte before is not of
  begins.set(0);
  for (int32_t state = 0; state < grammar_.num_states(); ++state) {
    for (const Grammar::Edge& edge : grammar_.edges(state)) {
      begins.set(edge.bytes.first);
      begins.set(size_t{edge.bytes.last} + 1);
    }
  }
  int32_t last = -1;
  for (size_t byte = 0; byte < 256; ++byte) {
    if (begins[byte]) ++last;
    class_of_.push_back(static_cast<uint8_t>(last));
  }
  num_classes_ = last + 1;
}

void TextAutomaton::Clear() {
  ways_.clear();
  way_of_.clear();
  states_.clear();
  ways_of_states_.clear();
  next_.clear();
  works_.clear();
  state_of_.clear();
  marks_.clear();
}

int32_t TextAutomaton::ClearBut(int32_t state) {
  const SavedState saved = Save(state);
  Clear();
  return Load(saved);
}

TextAutomaton::SavedState TextAutomaton::Save(int32_t state) const {
  const State& from = states_[static_cast<size_t>(state)];
  SavedState saved;
  saved.may_end_ = from.may_end;
  absl::flat_hash_map<int32_t, int32_t> places = {{kNoWay, kNoWay}};
  std::vector<int32_t> nested;
  for (int64_t i = 0; i < from.num_ways; ++i) {
    const int32_t index = ways_of_states_[static_cast<size_t>(from.first_way + i)];
    for (int32_t way = index; !places.contains(way); way = ways_[static_cast<size_t>(way)].after) {
      nested.push_back(way);
    }
    for (; !nested.empty(); nested.pop_back()) {
      Way way = ways_[static_cast<size_t>(nested.back())];
      way.after = places[way.after];
      places[nested.back()] = static_cast<int32_t>(saved.ways_.size());
      saved.ways_.push_back(way);
    }
    saved.of_state_.push_back(places[index]);
  }
  return saved;
}

int32_t TextAutomaton::Load(const SavedState& saved) {
  std::vector<int32_t> ways;
  for (const Way& way : saved.ways_) {
    ways.push_back(
        WayOf(way.state, way.after == kNoWay ? kNoWay : ways[static_cast<size_t>(way.after)]));
  }
  Open();
  for (const int32_t place : saved.of_state_) {
    closed_.push_back(ways[static_cast<size_t>(place)]);
  }
  may_end_ = saved.may_end_;
  return StateOfClosed();
}

int32_t TextAutomaton::Start() {
  Open();
  Close(WayOf(grammar_.start(), kNoWay));
  return StateOfClosed();
}

int32_t TextAutomaton::Make(int32_t state, uint8_t byte) {
  const State from = states_[static_cast<size_t>(state)];
  Open();
  for (int64_t i = 0; i < from.num_ways && !has_most_ways(); ++i) {
    const Way way =
        ways_[static_cast<size_t>(ways_of_states_[static_cast<size_t>(from.first_way + i)])];
    const std::span<const Grammar::Edge> edges = grammar_.edges(way.state);
    work_ += 1 + static_cast<int32_t>(edges.size() / 16);
    for (const Grammar::Edge& edge : edges) {
      if (byte < edge.bytes.first || byte > edge.bytes.last) continue;
      if (way.num_calls + grammar_.depth(edge.target) > kMaxDepth) continue;
      ++work_;
      Close(WayOf(edge.target, way.after));
      if (has_most_ways()) break;
    }
  }
  const int32_t next = closed_.empty() && !may_end_ ? kNoState : StateOfClosed();
  next_[StepOf(state, byte)] = next;
  works_[StepOf(state, byte)] = work_;
  return next;
}

int32_t TextAutomaton::WayOf(int32_t state, int32_t after) {
  const uint64_t key = uint64_t{static_cast<uint32_t>(state)} << 32 | static_cast<uint32_t>(after);
  const auto [place, is_new] = way_of_.try_emplace(key, static_cast<int32_t>(ways_.size()));
  if (is_new) {
    const int32_t num_calls = after == kNoWay ? 0 : ways_[static_cast<size_t>(after)].num_calls + 1;
    ways_.push_back({.state = state, .after = after, .num_calls = num_calls});
    marks_.push_back(0);
  }
  return place->second;
}

void TextAutomaton::Add(int32_t way) {
  if (std::exchange(marks_[static_cast<size_t>(way)], mark_) != mark_) pending_.push_back(way);
}

int32_t TextAutomaton::ReturnTo(int32_t target, int32_t after) {
  // Nothing is left of the caller: its own return will do, so that lists of any length do not nest.
  const bool only_ends =
      grammar_.is_end(target) && grammar_.edges(target).empty() && grammar_.calls(target).empty();
  return only_ends ? after : WayOf(target, after);
}

void TextAutomaton::Follow(int32_t index) {
  const Way way = ways_[static_cast<size_t>(index)];
  work_ += 1 + static_cast<int32_t>(grammar_.calls(way.state).size());
  if (!grammar_.edges(way.state).empty()) closed_.push_back(index);
  if (grammar_.is_end(way.state)) {
    if (way.after == kNoWay) {
      may_end_ = true;
    } else {
      Add(way.after);
    }
  }
  for (const Grammar::Call& call : grammar_.calls(way.state)) {
    if (way.num_calls + grammar_.depth(call.target) > kMaxDepth) continue;
    const int32_t after = ReturnTo(call.target, way.after);
    const int32_t num_calls = after == kNoWay ? 0 : ways_[static_cast<size_t>(after)].num_calls + 1;
    if (num_calls + grammar_.depth(call.start) > kMaxDepth) continue;
    Add(WayOf(call.start, after));
  }
}

void TextAutomaton::Open() {
  closed_.clear();
  may_end_ = false;
  work_ = 0;
  ++mark_;
}

void TextAutomaton::Close(int32_t way) {
  Add(way);
  while (!pending_.empty() && !has_most_ways()) {
    const int32_t next = pending_.back();
    pending_.pop_back();
    Follow(next);
  }
  pending_.clear();
}

int32_t TextAutomaton::StateOfClosed() {
  const auto num_ways = static_cast<int32_t>(closed_.size());
  if (may_end_) closed_.push_back(kNoWay);
  const auto [place, is_new] = state_of_.try_emplace(closed_, num_states());
  if (is_new) {
    states_.push_back(
        {.first_way = std::ssize(ways_of_states_), .num_ways = num_ways, .may_end = may_end_});
    ways_of_states_.insert(ways_of_states_.end(), closed_.begin(), closed_.begin() + num_ways);
    next_.resize(next_.size() + static_cast<size_t>(num_classes_), kNotMade);
    works_.resize(next_.size());
  }
  return place->second;
}

}  // namespace lockstep::grammar
