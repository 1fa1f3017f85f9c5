// Which texts a grammar has, found the plain way: every place where one may be, byte by byte.
//
// For tests of grammars that are small.
#pragma once

#include <cstdint>
#include <set>
#include <string_view>
#include <vector>

#include "model/grammar/grammar.h"

namespace lockstep {

// Where one may be in a text: a state of the rule that is being read, last, and before it those at
// which the rules that called it go on.
using GrammarPlace = std::vector<int32_t>;
using GrammarPlaces = std::set<GrammarPlace>;

// And all that can be reached from them without another byte: by calls and returns. There is an end
// to it, since no rule can call itself before it has read a byte.
inline GrammarPlaces WithoutReading(const GrammarPlaces& places, const grammar::Grammar& grammar) {
  GrammarPlaces reached;
  std::vector<GrammarPlace> pending(places.begin(), places.end());
  while (!pending.empty()) {
    const GrammarPlace place = pending.back();
    pending.pop_back();
    if (!reached.insert(place).second) continue;
    const int32_t state = place.back();
    for (const grammar::Grammar::Call& call : grammar.calls(state)) {
      GrammarPlace inside = place;
      inside.back() = call.target;
      inside.push_back(call.start);
      pending.push_back(inside);
    }
    if (grammar.is_end(state) && place.size() > 1) {
      pending.emplace_back(place.begin(), place.end() - 1);
    }
  }
  return reached;
}

inline GrammarPlaces AfterByte(const GrammarPlaces& places, uint8_t byte,
                               const grammar::Grammar& grammar) {
  GrammarPlaces next;
  for (const GrammarPlace& place : places) {
    for (const grammar::Grammar::Edge& edge : grammar.edges(place.back())) {
      if (byte < edge.bytes.first || byte > edge.bytes.last) continue;
      GrammarPlace moved = place;
      moved.back() = edge.target;
      next.insert(moved);
    }
  }
  return WithoutReading(next, grammar);
}

// None if no text of the grammar begins so.
inline GrammarPlaces PlacesAfter(const grammar::Grammar& grammar, std::string_view text) {
  GrammarPlaces places = WithoutReading({{grammar.start()}}, grammar);
  for (const char c : text) places = AfterByte(places, static_cast<uint8_t>(c), grammar);
  return places;
}

inline bool Matches(const grammar::Grammar& grammar, std::string_view text) {
  for (const GrammarPlace& place : PlacesAfter(grammar, text)) {
    if (place.size() == 1 && grammar.is_end(place.back())) return true;
  }
  return false;
}

// Some text of the grammar begins so: from every state an end can be reached.
inline bool IsPrefix(const grammar::Grammar& grammar, std::string_view text) {
  return !PlacesAfter(grammar, text).empty();
}

}  // namespace lockstep
