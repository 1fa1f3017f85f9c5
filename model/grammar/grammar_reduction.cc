#include "model/grammar/grammar_reduction.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace lockstep::grammar {
namespace {

constexpr int32_t kUnknown = -1;
// Of edges and calls together: steps that read nothing may give a state all of its rule's.
// Who reads a text looks at all that its ways have.
constexpr int64_t kMaxArrows = 1 << 17;
constexpr int64_t kMaxSteps = 64 * kMaxArrows;

}  // namespace

absl::StatusOr<Grammar> GrammarReduction::Run() {
  RETURN_IF_ERROR(CloseAll());
  FindDepths();
  if (depths_[0] == kUnknown) {
    return absl::InvalidArgumentError(
        absl::StrCat("no text matches, or only one that is nested more than ", kMaxDepth, " deep"));
  }
  Trim();
  FindNullable();
  NumberReached();
  RETURN_IF_ERROR(RefuseLeftRecursion());
  return Flatten();
}

bool GrammarReduction::Mark(int32_t state) {
  return std::exchange(marks_[static_cast<size_t>(state)], mark_) == mark_;
}

// Gives every state that is reached by reading what the steps from it lead to.
absl::Status GrammarReduction::CloseAll() {
  std::vector<bool> is_reached(states_.size());
  std::vector<int32_t> pending;
  const auto reach = [&](int32_t state) {
    if (is_reached[static_cast<size_t>(state)]) return;
    is_reached[static_cast<size_t>(state)] = true;
    pending.push_back(state);
  };
  std::vector<RawState> closed(states_.size());
  int64_t num_arrows = 0;
  reach(0);
  while (!pending.empty()) {
    const int32_t state = pending.back();
    pending.pop_back();
    RawState& whole = closed[static_cast<size_t>(state)];
    Close(state, whole);
    num_arrows += std::ssize(whole.arrows);
    if (num_arrows > kMaxArrows || num_steps_ > kMaxSteps) {
      return absl::InvalidArgumentError(
          absl::StrCat("too large: it takes more than ", kMaxArrows, " edges between states"));
    }
    for (const Arrow& arrow : whole.arrows) {
      reach(arrow.target);
      if (arrow.start != RawState::kNoRule) reach(arrow.start);
    }
  }
  states_ = std::move(closed);
  return absl::OkStatus();
}

void GrammarReduction::Close(int32_t state, RawState& closed) {
  NewMarks();
  Mark(state);
  std::vector<int32_t> pending = {state};
  while (!pending.empty()) {
    const RawState& next = at(pending.back());
    pending.pop_back();
    closed.is_end = closed.is_end || next.is_end;
    closed.arrows.insert(closed.arrows.end(), next.arrows.begin(), next.arrows.end());
    num_steps_ += 1 + std::ssize(next.steps);
    for (auto step = next.steps.rbegin(); step != next.steps.rend(); ++step) {
      if (!Mark(*step)) pending.push_back(*step);
    }
  }
}

GrammarReduction::NeededBy GrammarReduction::FindNeeded() const {
  NeededBy needed;
  needed.of_state.resize(states_.size());
  for (int32_t i = 0; i < static_cast<int32_t>(states_.size()); ++i) {
    for (const Arrow& arrow : at(i).arrows) {
      const auto index = static_cast<int32_t>(needed.arrows.size());
      needed.arrows.push_back({.owner = i, .arrow = &arrow});
      needed.of_state[static_cast<size_t>(arrow.target)].push_back(index);
      if (arrow.start == RawState::kNoRule) continue;
      needed.of_state[static_cast<size_t>(arrow.start)].push_back(index);
    }
  }
  return needed;
}

// First the states that need no calls to end, then those that need one more, and so on (Knuth, "A
// Generalization of Dijkstra's Algorithm", 1977): the first way to end that is found is the least.
void GrammarReduction::FindDepths() {
  depths_.assign(states_.size(), kUnknown);
  NeededBy needed = FindNeeded();
  std::vector<std::vector<int32_t>> of_depth(kMaxDepth);
  for (int32_t i = 0; i < static_cast<int32_t>(states_.size()); ++i) {
    if (at(i).is_end) of_depth[0].push_back(i);
  }
  for (int32_t depth = 0; depth < kMaxDepth; ++depth) {
    std::vector<int32_t>& pending = of_depth[static_cast<size_t>(depth)];
    while (!pending.empty()) {
      const int32_t state = pending.back();
      pending.pop_back();
      int32_t& found = depths_[static_cast<size_t>(state)];
      if (found != kUnknown) continue;
      found = depth;
      for (const int32_t index : needed.of_state[static_cast<size_t>(state)]) {
        Needed& need = needed.arrows[static_cast<size_t>(index)];
        const bool is_call = need.arrow->start != RawState::kNoRule;
        // A call that is the last of its rule does not nest (TextAutomaton::ReturnTo).
        const bool nests = need.arrow->start == state && !OnlyEnds(need.arrow->target);
        need.depth = std::max(need.depth, depth + (nests ? 1 : 0));
        if (++need.num_found < (is_call ? 2 : 1) || need.depth >= kMaxDepth) continue;
        of_depth[static_cast<size_t>(need.depth)].push_back(need.owner);
      }
    }
  }
}

bool GrammarReduction::OnlyEnds(int32_t state) const {
  return at(state).is_end && at(state).arrows.empty();
}

// Arrows that lead to no end.
void GrammarReduction::Trim() {
  const auto leads_nowhere = [&](const Arrow& arrow) {
    return depths_[static_cast<size_t>(arrow.target)] == kUnknown ||
           (arrow.start != RawState::kNoRule &&
            depths_[static_cast<size_t>(arrow.start)] == kUnknown);
  };
  for (RawState& state : states_) std::erase_if(state.arrows, leads_nowhere);
}

// By calls alone: edges read.
void GrammarReduction::FindNullable() {
  is_nullable_.assign(states_.size(), false);
  NeededBy needed = FindNeeded();
  std::vector<int32_t> pending;
  const auto find = [&](int32_t state) {
    if (is_nullable_[static_cast<size_t>(state)]) return;
    is_nullable_[static_cast<size_t>(state)] = true;
    pending.push_back(state);
  };
  for (int32_t i = 0; i < static_cast<int32_t>(states_.size()); ++i) {
    if (at(i).is_end) find(i);
  }
  while (!pending.empty()) {
    const int32_t state = pending.back();
    pending.pop_back();
    for (const int32_t index : needed.of_state[static_cast<size_t>(state)]) {
      Needed& need = needed.arrows[static_cast<size_t>(index)];
      if (need.arrow->start != RawState::kNoRule && ++need.num_found == 2) find(need.owner);
    }
  }
}

void GrammarReduction::NumberReached() {
  numbers_.assign(states_.size(), kUnknown);
  const auto reach = [&](int32_t state) {
    if (numbers_[static_cast<size_t>(state)] != kUnknown) return;
    numbers_[static_cast<size_t>(state)] = static_cast<int32_t>(order_.size());
    order_.push_back(state);
  };
  reach(0);
  for (size_t i = 0; i < order_.size(); ++i) {
    for (const Arrow& arrow : at(order_[i]).arrows) {
      reach(arrow.target);
      if (arrow.start != RawState::kNoRule) reach(arrow.start);
    }
  }
}

// The starts of rules that a text from state `start` may begin with, of the same rule's calls.
std::vector<int32_t> GrammarReduction::FirstCalls(int32_t start) {
  NewMarks();
  Mark(start);
  std::vector<int32_t> called;
  std::vector<int32_t> pending = {start};
  while (!pending.empty()) {
    const int32_t state = pending.back();
    pending.pop_back();
    for (const Arrow& arrow : at(state).arrows) {
      if (arrow.start == RawState::kNoRule) continue;
      called.push_back(arrow.start);
      const bool goes_on = is_nullable_[static_cast<size_t>(arrow.start)];
      if (goes_on && !Mark(arrow.target)) pending.push_back(arrow.target);
    }
  }
  std::sort(called.begin(), called.end());
  called.erase(std::unique(called.begin(), called.end()), called.end());
  return called;
}

// Depth first: a rule that is met while it is open calls itself. Rules are met at every call, but
// only those that a text may begin with are gone into.
absl::Status GrammarReduction::RefuseLeftRecursion() {
  enum : uint8_t { kNew, kOpen, kDone };
  std::vector<uint8_t> seen(states_.size(), kNew);
  struct Visit {
    int32_t start = 0;
    std::vector<int32_t> called;
    size_t next = 0;
  };
  std::vector<Visit> open;
  const auto visit = [&](int32_t start) {
    seen[static_cast<size_t>(start)] = kOpen;
    open.push_back({.start = start, .called = FirstCalls(start)});
  };
  std::vector<int32_t> starts;
  for (const int32_t state : order_) {
    for (const Arrow& arrow : at(state).arrows) {
      if (arrow.start != RawState::kNoRule) starts.push_back(arrow.start);
    }
  }
  for (const int32_t start : starts) {
    if (seen[static_cast<size_t>(start)] == kNew) visit(start);
    while (!open.empty()) {
      if (open.back().next == open.back().called.size()) {
        seen[static_cast<size_t>(open.back().start)] = kDone;
        open.pop_back();
        continue;
      }
      const int32_t called = open.back().called[open.back().next++];
      if (seen[static_cast<size_t>(called)] == kOpen) {
        return absl::InvalidArgumentError("it refers to itself without any text between");
      }
      if (seen[static_cast<size_t>(called)] == kNew) visit(called);
    }
  }
  return absl::OkStatus();
}

Grammar GrammarReduction::Flatten() const {
  const auto number = [&](int32_t state) { return numbers_[static_cast<size_t>(state)]; };
  Grammar grammar;
  for (const int32_t old : order_) {
    const RawState& state = at(old);
    Grammar::State& flat = grammar.states_.emplace_back();
    flat = {.first_edge = static_cast<int32_t>(grammar.edges_.size()),
            .first_call = static_cast<int32_t>(grammar.calls_.size()),
            .depth = depths_[static_cast<size_t>(old)],
            .is_end = state.is_end};
    for (const Arrow& arrow : state.arrows) {
      if (arrow.start == RawState::kNoRule) {
        grammar.edges_.push_back({.bytes = arrow.bytes, .target = number(arrow.target)});
      } else {
        grammar.calls_.push_back({.start = number(arrow.start), .target = number(arrow.target)});
      }
    }
    flat.num_edges = static_cast<int32_t>(grammar.edges_.size()) - flat.first_edge;
    flat.num_calls = static_cast<int32_t>(grammar.calls_.size()) - flat.first_call;
  }
  return grammar;
}

}  // namespace lockstep::grammar
