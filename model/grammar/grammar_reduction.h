// From automata as they are put together to a Grammar: steps that read nothing are gone, what leads
// to no end, and what cannot be reached.
//
// Pure; used once, by one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/grammar/grammar.h"

namespace lockstep::grammar {

struct RawState {
  static constexpr int32_t kNoRule = -1;
  struct Arrow {
    ByteRange bytes;
    int32_t start = kNoRule;  // else a call of the rule that begins there
    int32_t target = 0;
  };
  std::vector<Arrow> arrows;
  std::vector<int32_t> steps;  // to states, without reading
  bool is_end = false;
};

class GrammarReduction {
 public:
  // The grammar's text begins in state 0.
  explicit GrammarReduction(std::vector<RawState> states) : states_(std::move(states)) {}
  absl::StatusOr<Grammar> Run();

 private:
  using Arrow = RawState::Arrow;
  // All states' arrows, each found from the states that it needs: its target, and its start where
  // it is a call. What is found of states goes on along them, each looked at once from each.
  struct Needed {
    int32_t owner = 0;
    const Arrow* arrow = nullptr;
    int32_t num_found = 0;  // of the states that it needs
    int32_t depth = 0;      // of those found
  };
  struct NeededBy {
    std::vector<Needed> arrows;
    std::vector<std::vector<int32_t>> of_state;  // indices into arrows
  };

  absl::Status CloseAll();
  void Close(int32_t state, RawState& closed);
  NeededBy FindNeeded() const;
  void FindDepths();
  bool OnlyEnds(int32_t state) const;
  void Trim();
  void FindNullable();
  void NumberReached();
  std::vector<int32_t> FirstCalls(int32_t start);
  absl::Status RefuseLeftRecursion();
  Grammar Flatten() const;

  RawState& at(int32_t state) { return states_[static_cast<size_t>(state)]; }
  const RawState& at(int32_t state) const { return states_[static_cast<size_t>(state)]; }
  // Has the state been met since the last NewMarks?
  void NewMarks() { ++mark_, marks_.resize(states_.size()); }
  bool Mark(int32_t state);

  std::vector<RawState> states_;
  std::vector<int32_t> depths_;    // as Grammar::depth; -1: no end
  std::vector<bool> is_nullable_;  // a rule's text may end there, unread
  std::vector<int32_t> order_;     // states that are reached, by their new numbers
  std::vector<int32_t> numbers_;   // the other way; -1
  std::vector<uint64_t> marks_;
  uint64_t mark_ = 0;
  int64_t num_steps_ = 0;
};

}  // namespace lockstep::grammar
