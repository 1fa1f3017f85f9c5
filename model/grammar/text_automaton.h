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
#include <utility>
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
    const int32_t next = next_[state * num_classes_ + class_of_[byte]];
    return next != kNotMade ? next : Make(state, byte);
  }
  bool may_end(int32_t state) const { return states_[static_cast<size_t>(state)].may_end; }
  int32_t num_states() const { return static_cast<int32_t>(states_.size()); }

  // There may be some more states than asked for, but who makes many must look now and then.
  bool is_full() const { return num_states() >= max_states_ || std::ssize(ways_) >= kMostWays; }
  // Forgets all states but one, whose number there is from now on.
  int32_t ClearBut(int32_t state);

 private:
  static constexpr int32_t kNotMade = -2;
  static constexpr int32_t kNoWay = -1;
  static constexpr int64_t kMostWays = 1 << 20;

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
  // The state of the ways that read_ are, and of all that their calls and ends lead to.
  int32_t Close();
  int32_t StateOfClosed();
  int32_t CopyWay(std::span<const Way> from, int32_t way);
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
  absl::flat_hash_map<std::pair<int32_t, int32_t>, int32_t> way_of_;  // (state, after)
  std::vector<State> states_;
  std::vector<int32_t> ways_of_states_;
  std::vector<int32_t> next_;  // [num_states, num_classes_]
  absl::flat_hash_map<std::vector<int32_t>, int32_t>
      state_of_;  // ways, and kNoWay where it may end

  std::vector<int32_t> read_;
  // Of Close.
  std::vector<int32_t> pending_;
  std::vector<uint64_t> marks_;  // [ways]
  uint64_t mark_ = 0;
  std::vector<int32_t> closed_;
  bool may_end_ = false;
};

}  // namespace lockstep::grammar
