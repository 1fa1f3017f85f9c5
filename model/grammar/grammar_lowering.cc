// From parts to automata: each rule's by Thompson's construction ("Regular Expression Search
// Algorithm", 1968).
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "model/grammar/grammar.h"
#include "model/grammar/grammar_reduction.h"

namespace lockstep::grammar {

class GrammarBuilder::Lowering {
 public:
  explicit Lowering(const GrammarBuilder& builder)
      : builder_(builder), starts_(builder.rules_.size(), RawState::kNoRule) {}

  // The root's begins in state 0. Every rule that it needs is among them.
  absl::StatusOr<std::vector<RawState>> Run(Part root) {
    RETURN_IF_ERROR(LowerRule(root, AddState()));
    while (!pending_.empty()) {
      const auto rule = static_cast<size_t>(pending_.back());
      pending_.pop_back();
      const std::optional<Part> body = builder_.rules_[rule];
      LS_CHECK(body.has_value()) << "rule " << rule << " is called, but not defined";
      RETURN_IF_ERROR(LowerRule(*body, starts_[rule]));
    }
    return std::move(states_);
  }

 private:
  RawState& at(int32_t state) { return states_[static_cast<size_t>(state)]; }
  int32_t AddState() {
    states_.emplace_back();
    return static_cast<int32_t>(states_.size() - 1);
  }

  absl::Status LowerRule(Part body, int32_t start) {
    size_ += builder_.node(body).num_states;
    if (size_ > kMaxStates) {
      return absl::InvalidArgumentError(
          absl::StrCat("too large: it takes more than ", kMaxStates, " states"));
    }
    const int32_t end = AddState();
    at(end).is_end = true;
    Lower(body, start, end);
    return absl::OkStatus();
  }

  // Adds nothing that leads to `from` or away from `to`.
  void Lower(Part part, int32_t from, int32_t to) {
    const Node& node = builder_.node(part);
    switch (node.kind) {
      case Kind::kText:
        return LowerText(node, from, to);
      case Kind::kBytes:
        for (const ByteRange& bytes : node.bytes) {
          at(from).arrows.push_back({.bytes = bytes, .target = to});
        }
        return;
      case Kind::kSequence:
        return LowerSequence(node, from, to);
      case Kind::kChoice:
        for (const Part choice : node.parts) Lower(choice, from, to);
        return;
      case Kind::kRepeat:
        return LowerRepeat(node, from, to);
      case Kind::kCall: {
        const int32_t start = StartOf(node.rule);
        at(from).arrows.push_back({.bytes = {}, .start = start, .target = to});
        return;
      }
    }
  }

  void LowerText(const Node& node, int32_t from, int32_t to) {
    if (node.text.empty()) at(from).steps.push_back(to);
    for (size_t i = 0; i < node.text.size(); ++i) {
      const int32_t next = i + 1 == node.text.size() ? to : AddState();
      at(from).arrows.push_back({.bytes = {node.text[i], node.text[i]}, .target = next});
      from = next;
    }
  }

  void LowerSequence(const Node& node, int32_t from, int32_t to) {
    if (node.parts.empty()) at(from).steps.push_back(to);
    for (size_t i = 0; i < node.parts.size(); ++i) {
      const int32_t next = i + 1 == node.parts.size() ? to : AddState();
      Lower(node.parts[i], from, next);
      from = next;
    }
  }

  void LowerRepeat(const Node& node, int32_t from, int32_t to) {
    const int64_t copies = node.max.value_or(node.min);
    for (int64_t i = 0; i < copies; ++i) {
      if (i >= node.min) at(from).steps.push_back(to);
      const int32_t next = AddState();
      Lower(node.parts[0], from, next);
      from = next;
    }
    if (!node.max.has_value()) {
      const int32_t loop = AddState();
      const int32_t after = AddState();
      at(from).steps.push_back(loop);
      Lower(node.parts[0], loop, after);
      at(after).steps.push_back(loop);
      from = loop;
    }
    at(from).steps.push_back(to);
  }

  int32_t StartOf(Rule rule) {
    int32_t& start = starts_[static_cast<size_t>(rule)];
    if (start == RawState::kNoRule) {
      start = AddState();
      pending_.push_back(rule);
    }
    return start;
  }

  const GrammarBuilder& builder_;
  std::vector<int32_t> starts_;  // of rules that are called
  std::vector<Rule> pending_;    // of them, those that are not lowered yet
  int64_t size_ = 0;
  std::vector<RawState> states_;
};

absl::StatusOr<Grammar> GrammarBuilder::Build(Part root) const {
  if (is_full()) {
    return absl::InvalidArgumentError(
        absl::StrCat("too large: it takes more than ", kMaxParts, " parts"));
  }
  ASSIGN_OR_RETURN(std::vector<RawState> states, Lowering(*this).Run(root));
  return GrammarReduction(std::move(states)).Run();
}

}  // namespace lockstep::grammar
