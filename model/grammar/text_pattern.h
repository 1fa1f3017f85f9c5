// A regular expression over characters, whose matches can be counted: those of a JSON string are
// kept between a least and a greatest length.
//
// Immutable; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "model/grammar/grammar.h"
#include "model/grammar/json_text.h"
#include "model/grammar/schema_document.h"

namespace lockstep::grammar {

class TextPattern {
 public:
  struct Length {
    int64_t min_characters = 0;
    std::optional<int64_t> max_characters;
  };

  // is_anchored: as RegexOptions::anchored. INVALID_ARGUMENT: what AddRegex says.
  static absl::StatusOr<TextPattern> Parse(std::string_view pattern, bool is_anchored,
                                           SchemaWork& work);

  // text is UTF-8.
  absl::StatusOr<bool> Matches(std::string_view text, SchemaWork& work) const;

  // What stands between the quotes of a JSON string that matches and is so long.
  // INVALID_ARGUMENT: it is too large.
  absl::StatusOr<GrammarBuilder::Part> OfLength(Length length, SchemaWork& work, JsonText& text,
                                                GrammarBuilder& builder) const;

 private:
  using CharacterRanges = std::vector<CodePointRange>;

  TextPattern(Grammar grammar, std::vector<CharacterRanges> sets)
      : grammar_(std::move(grammar)), sets_(std::move(sets)) {}

  // Without calls. A byte stands for any character of the set of that number.
  Grammar grammar_;
  std::vector<CharacterRanges> sets_;
};

}  // namespace lockstep::grammar
