// What a text may be: a context-free grammar over bytes, as one automaton for each of its rules.
//
// From every state that can be reached some text ends the grammar, and no rule can call itself
// before it has read a byte. Immutable once built; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep::grammar {

struct ByteRange {
  uint8_t first = 0;
  uint8_t last = 0;
  bool operator==(const ByteRange&) const = default;
};
struct CodePointRange {
  char32_t first = 0;
  char32_t last = 0;
  bool operator==(const CodePointRange&) const = default;
};

inline constexpr int32_t kMaxStates = 1 << 16;
// Of rules that are called within each other, in a text.
inline constexpr int32_t kMaxDepth = 512;

class Grammar {
 public:
  struct Edge {
    ByteRange bytes;
    int32_t target = 0;  // a state of the same rule
  };
  // A whole text of another rule, which begins in state `start`; then on in state `target`.
  struct Call {
    int32_t start = 0;
    int32_t target = 0;
  };

  // Where the whole text begins.
  int32_t start() const { return start_; }
  int32_t num_states() const { return static_cast<int32_t>(states_.size()); }
  int64_t num_edges() const { return std::ssize(edges_); }
  // What is next in a state: one of these, or the end of its rule's text where that may be.
  std::span<const Edge> edges(int32_t state) const {
    return std::span(edges_).subspan(states_[state].first_edge, states_[state].num_edges);
  }
  std::span<const Call> calls(int32_t state) const {
    return std::span(calls_).subspan(states_[state].first_call, states_[state].num_calls);
  }
  bool is_end(int32_t state) const { return states_[state].is_end; }
  // To end the rule's text from here takes at least so many calls within each other.
  int32_t depth(int32_t state) const { return states_[state].depth; }

 private:
  friend class GrammarReduction;
  struct State {
    int32_t first_edge = 0;
    int32_t num_edges = 0;
    int32_t first_call = 0;
    int32_t num_calls = 0;
    int32_t depth = 0;
    bool is_end = false;
  };
  int32_t start_ = 0;
  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<Call> calls_;
};

// Puts a grammar together. Parts are numbers of this builder's; each may be used many times, which
// costs its states each time: what is large and used often is better made a rule.
class GrammarBuilder {
 public:
  using Part = int32_t;
  using Rule = int32_t;

  Part Empty() { return Text(""); }
  Part Text(std::string_view bytes);
  // One byte of these.
  Part Byte(std::span<const ByteRange> ranges);
  // One character of these in UTF-8; surrogates are left out. No ranges: nothing matches.
  Part Character(std::span<const CodePointRange> ranges);
  Part Sequence(std::vector<Part> parts);
  Part Choice(std::vector<Part> parts);  // of none: nothing matches
  // One of these, which are told apart as early as they differ.
  Part OneOf(std::vector<std::string> texts);
  Part Optional(Part part) { return Choice({Empty(), part}); }
  // nullopt: without end. 0 <= min <= max.
  Part Repeat(Part part, int64_t min, std::optional<int64_t> max);

  // A rule may be called before it is defined, and by itself.
  Rule Declare();
  void Define(Rule rule, Part body);
  Part Call(Rule rule);
  Part MakeRule(Part body);  // Declare, Define and Call

  // So many parts that Build refuses them: who makes many looks now and then.
  bool is_full() const { return std::ssize(nodes_) > kMaxParts; }

  // Rules that are called must be defined. INVALID_ARGUMENT: more than kMaxStates; a rule that
  // calls itself before it has read a byte; no text matches.
  absl::StatusOr<Grammar> Build(Part root) const;

 private:
  static constexpr int64_t kMaxParts = 1 << 18;

  enum class Kind { kText, kBytes, kSequence, kChoice, kRepeat, kCall };
  struct Node {
    Kind kind = Kind::kText;
    std::vector<uint8_t> text = {};
    std::vector<ByteRange> bytes = {};
    std::vector<Part> parts = {};
    int64_t min = 0;
    std::optional<int64_t> max = {};
    Rule rule = 0;
    int64_t num_states = 0;  // at least what it takes; no more than kMaxStates + 1
  };
  class Lowering;

  Part Add(Node node);
  Part OneText(std::span<const std::string> sorted, size_t num_shared);
  const Node& node(Part part) const { return nodes_[static_cast<size_t>(part)]; }

  std::vector<Node> nodes_;
  std::vector<std::optional<Part>> rules_;
};

}  // namespace lockstep::grammar
