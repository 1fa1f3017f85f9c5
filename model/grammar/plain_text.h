// Plain characters, which strings of JSON and most others may hold as they are: all but control
// characters, " and \. Where any of them may come next, whatever they are, tokens that are made of
// nothing else need not be looked at one by one.
//
// (llguidance calls such sets of tokens slices: github.com/guidance-ai/llguidance,
// docs/optimizations.md.)
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "model/grammar/text_automaton.h"

namespace lockstep::grammar {

// Of a text that is whole plain characters; else nullopt.
std::optional<int32_t> CountPlainCharacters(std::string_view text);

// How many plain characters may follow in a state, whatever they are. Remembers what it finds until
// it is told to forget, as states are. Used with one automaton, by its thread.
class PlainReach {
 public:
  static constexpr int32_t kAnyNumber = INT32_MAX;

  PlainReach();

  // Not counted beyond `most`: what is not kAnyNumber is at most that.
  int32_t Of(TextAutomaton& automaton, int32_t state, int32_t most);
  void Forget() { successors_.clear(); }

 private:
  struct Successors {
    bool is_known = false;
    bool is_complete = false;     // no plain character is missing
    int64_t work = 0;             // that finding them took
    std::vector<int32_t> states;  // after any of them
  };
  const Successors& Find(TextAutomaton& automaton, int32_t state);

  const std::vector<std::vector<ByteRange>> sequences_;  // all plain characters
  std::vector<Successors> successors_;                   // by state
};

}  // namespace lockstep::grammar
