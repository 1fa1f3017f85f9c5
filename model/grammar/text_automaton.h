// A grammar's texts read byte by byte: a deterministic automaton whose states are made when they
// are first reached, and kept (Thompson 1968; Cox, "Regular Expression Matching: the Virtual
// Machine Approach", for the cache that is emptied when it is full).
//
// A state is the set of ways to read the text so far. A way is a state of the grammar and the calls
// to return from, which ways share. Every way can be ended: nothing is read that no text goes on
// from. Of more ways than kMaxWays the first are followed, and calls are not followed deeper than
// kMaxDepth: fewer texts are read then, all of them the grammar's. Which ones depends on the text
// alone. Used by one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "model/grammar/grammar.h"

namespace lockstep::grammar {

class TextAutomaton {
 public:
  static constexpr int32_t kMaxWays = 512;
  static constexpr int32_t kNoState = -1;

  // max_states: beyond, is_full.
  explicit TextAutomaton(Grammar grammar, int32_t max_states = 8192);

  // States are numbers from 0 on, until Clear.
  int32_t Start();
  // kNoState: no text goes on with that byte.
  int32_t Next(int32_t state, uint8_t byte) {
    const int32_t next = next_[StepOf(state, byte)];
    return next != kNotMade ? next : Make(state, byte);
  }
  // A step that was made has a number, until Clear, and took so much work, whenever it is made.
  size_t StepOf(int32_t state, uint8_t byte) const {
    return static_cast<size_t>(state * num_classes_ + class_of_[byte]);
  }
  int32_t work_of(size_t step) const { return works_[step]; }
  bool may_end(int32_t state) const { return states_[static_cast<size_t>(state)].may_end; }
  int32_t num_ways(int32_t state) const { return states_[static_cast<size_t>(state)].num_ways; }
  int32_t num_states() const { return static_cast<int32_t>(states_.size()); }
  int64_t num_ways() const { return std::ssize(ways_); }  // of all states

  // There may be some more states than asked for, but who makes many must look now and then.
  bool is_full() const { return num_states() >= max_states_ || std::ssize(ways_) >= kMostWays; }
  // Forgets all states but one, whose number there is from now on.
  int32_t ClearBut(int32_t state);

  // What a state is, whatever is forgotten.
  class SavedState;
  SavedState Save(int32_t state) const;
  int32_t Load(const SavedState& saved);

 private:
  static constexpr int32_t kNotMade = -2;
  static constexpr int32_t kNoWay = -1;
  static constexpr int64_t kMostWays = 1 << 18;

  struct Way {
    int32_t state = 0;       // of the grammar
    int32_t after = kNoWay;  // where the text goes on when the rule's has ended
    int32_t num_calls = 0;   // that it lies in
  };
  struct State {
    int64_t first_way = 0;  // among those of all states
    int32_t num_ways = 0;
    bool may_end = false;
  };

  void FindClasses();
  void Clear();
  int32_t Make(int32_t state, uint8_t byte);
  // A state is put together of ways, one after the other, so that of too many the first have all
  // that their calls and ends lead to.
  void Open();
  void Close(int32_t way);
  bool has_most_ways() const { return std::ssize(closed_) >= kMaxWays; }
  int32_t StateOfClosed();
  void Follow(int32_t way);
  int32_t WayOf(int32_t state, int32_t after);
  // Where a call returns to; kNoWay as in the end of the text.
  int32_t ReturnTo(int32_t target, int32_t after);
  void Add(int32_t way);

  const Grammar grammar_;
  const int32_t max_states_;
  std::vector<uint8_t> class_of_;  // [256]: bytes that no state tells apart
  int32_t num_classes_ = 0;

  std::vector<Way> ways_;
  absl::flat_hash_map<uint64_t, int32_t> way_of_;  // by state and after
  std::vector<State> states_;
  std::vector<int32_t> ways_of_states_;
  std::vector<int32_t> next_;   // [num_states, num_classes_]
  std::vector<int32_t> works_;  // as next_
  absl::flat_hash_map<std::vector<int32_t>, int32_t>
      state_of_;  // ways, and kNoWay where it may end

  // Of the state that is put together.
  std::vector<int32_t> pending_;
  std::vector<uint64_t> marks_;  // [ways]
  uint64_t mark_ = 0;
  std::vector<int32_t> closed_;
  bool may_end_ = false;
  int32_t work_ = 0;  // ways, and edges and calls that they have
};

class TextAutomaton::SavedState {
 public:
  // It is that of no text.
  bool is_empty() const { return of_state_.empty() && !may_end_; }

 private:
  friend class TextAutomaton;
  std::vector<Way> ways_;  // each behind that where it goes on, of which it has the place here
  std::vector<int32_t> of_state_;
  bool may_end_ = false;
};

}  // namespace lockstep::grammar
