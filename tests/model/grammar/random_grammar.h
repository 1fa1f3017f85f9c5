// Grammars and texts from a seed, over the letters a, b and c.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "model/grammar/grammar.h"

namespace lockstep::testing {

class RandomGrammar {
 public:
  explicit RandomGrammar(uint32_t seed) : random_(seed) {
    for (int i = 0; i < 3; ++i) rules_.push_back(builder_.Declare());
    for (const grammar::GrammarBuilder::Rule rule : rules_) {
      // Something is read before another rule is called.
      builder_.Define(rule, builder_.Sequence({Letter(), Draw(3)}));
    }
    root_ = Draw(4);
  }

  absl::StatusOr<grammar::Grammar> Build() const { return builder_.Build(root_); }

 private:
  using Part = grammar::GrammarBuilder::Part;

  int Below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }
  Part Letter() { return builder_.Text(std::string(1, static_cast<char>('a' + Below(3)))); }
  Part Draw(int depth) {
    if (depth == 0) return Letter();
    switch (Below(8)) {
      case 0:
      case 1:
        return builder_.Sequence({Draw(depth - 1), Draw(depth - 1)});
      case 2:
      case 3:
        return builder_.Choice({Draw(depth - 1), Draw(depth - 1), Draw(depth - 1)});
      case 4:
        return builder_.Optional(Draw(depth - 1));
      case 5: {
        const int min = Below(3);
        return Below(2) == 0 ? builder_.Repeat(Draw(depth - 1), min, std::nullopt)
                             : builder_.Repeat(Draw(depth - 1), min, min + Below(3));
      }
      default:
        return Below(3) == 0 ? Letter() : builder_.Call(rules_[static_cast<size_t>(Below(3))]);
    }
  }

  std::mt19937 random_;
  grammar::GrammarBuilder builder_;
  std::vector<grammar::GrammarBuilder::Rule> rules_;
  Part root_ = 0;
};

inline std::string RandomLetters(std::mt19937& random, int most) {
  std::string text(std::uniform_int_distribution<size_t>(0, static_cast<size_t>(most))(random),
                   'a');
  for (char& c : text)
    c = static_cast<char>('a' + std::uniform_int_distribution<int>(0, 2)(random));
  return text;
}

}  // namespace lockstep::testing
