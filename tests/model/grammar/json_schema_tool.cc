// For each line {"schema": text, "count": n, "seed": s, "texts": [...]} of standard input prints
// {"written": [...], "matches": [...], "num_states": n}: n random texts of the schema's grammar,
// and which of the given texts it has; or {"error": ...}. A script compares them with a validator.
#include <cstdint>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "model/grammar/grammar.h"
#include "model/grammar/json_schema.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/dice.h"
#include "tests/support/grammar_texts.h"

namespace {

using Json = nlohmann::json;
using lockstep::grammar::Grammar;
using lockstep::testing::Dice;

// Walks at random, and when a text is long enough by the shortest way to its end.
class TextWriter {
 public:
  explicit TextWriter(const Grammar& grammar)
      : grammar_(grammar), bytes_to_end_(static_cast<size_t>(grammar.num_states()), kFar) {
    for (bool has_changed = true; has_changed;) {
      has_changed = false;
      // From the last, as texts mostly go on in later states.
      for (int32_t state = grammar.num_states() - 1; state >= 0; --state) {
        int64_t least = grammar.is_end(state) ? 0 : kFar;
        for (const Grammar::Edge& edge : grammar.edges(state)) least = Less(least, Cost(edge));
        for (const Grammar::Call& call : grammar.calls(state)) least = Less(least, Cost(call));
        has_changed = has_changed || least < ToEnd(state);
        bytes_to_end_[static_cast<size_t>(state)] = Less(least, ToEnd(state));
      }
    }
  }

  std::string Write(Dice& dice) const {
    const auto most_bytes = static_cast<size_t>(dice.Pick(1, 6) * dice.Pick(1, 60));
    const int end_rate = dice.Pick(2, 12);
    std::string text;
    std::vector<int32_t> after;
    int32_t state = grammar_.start();
    while (true) {
      const bool hurries = text.size() >= most_bytes || after.size() > 100;
      const auto num_edges = static_cast<int>(grammar_.edges(state).size());
      const auto num_calls = static_cast<int>(grammar_.calls(state).size());
      const bool ends =
          grammar_.is_end(state) && (hurries || num_edges + num_calls == 0 || dice.OneIn(end_rate));
      if (ends && after.empty()) return text;
      if (ends) {
        state = after.back();
        after.pop_back();
        continue;
      }
      const int choice = hurries ? Shortest(state) : dice.Pick(0, num_edges + num_calls - 1);
      if (choice < num_edges) {
        const Grammar::Edge& edge = grammar_.edges(state)[static_cast<size_t>(choice)];
        text.push_back(static_cast<char>(dice.Pick(edge.bytes.first, edge.bytes.last)));
        state = edge.target;
      } else {
        const Grammar::Call& call = grammar_.calls(state)[static_cast<size_t>(choice - num_edges)];
        after.push_back(call.target);
        state = call.start;
      }
    }
  }

 private:
  static constexpr int64_t kFar = std::numeric_limits<int64_t>::max() / 4;

  static int64_t Less(int64_t a, int64_t b) { return a < b ? a : b; }
  int64_t ToEnd(int32_t state) const { return bytes_to_end_[static_cast<size_t>(state)]; }
  int64_t Cost(const Grammar::Edge& edge) const { return Less(kFar, 1 + ToEnd(edge.target)); }
  int64_t Cost(const Grammar::Call& call) const {
    return Less(kFar, ToEnd(call.start) + ToEnd(call.target));
  }

  int Shortest(int32_t state) const {
    int choice = 0;
    int index = 0;
    int64_t least = kFar;
    const auto offer = [&](int64_t cost) {
      if (cost < least) {
        least = cost;
        choice = index;
      }
      ++index;
    };
    for (const Grammar::Edge& edge : grammar_.edges(state)) offer(Cost(edge));
    for (const Grammar::Call& call : grammar_.calls(state)) offer(Cost(call));
    return choice;
  }

  const Grammar& grammar_;
  std::vector<int64_t> bytes_to_end_;  // of the state's rule
};

absl::StatusOr<Grammar> Compile(const std::string& schema) {
  lockstep::grammar::GrammarBuilder builder;
  const auto part = lockstep::grammar::AddJsonSchema(schema, builder);
  return part.ok() ? builder.Build(*part) : part.status();
}

Json Answer(const Json& line) {
  const auto grammar = Compile(line["schema"].get<std::string>());
  if (!grammar.ok()) return {{"error", std::string(grammar.status().message())}};
  Json written = Json::array();
  const TextWriter writer(*grammar);
  Dice dice(line["seed"].get<uint64_t>());
  for (int i = 0; i < line["count"].get<int>(); ++i) written.push_back(writer.Write(dice));
  Json matches = Json::array();
  for (const Json& text : line["texts"]) {
    matches.push_back(lockstep::Matches(*grammar, text.get<std::string>()));
  }
  return {{"written", written}, {"matches", matches}, {"num_states", grammar->num_states()}};
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << Answer(Json::parse(line)).dump() << std::endl;
  }
  return 0;
}
