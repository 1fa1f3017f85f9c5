// Finds added tokens ("<|eot_id|>") in text: at each position the longest, leftmost first, as HF
// tokenizers' added_vocabulary.rs does with a leftmost-longest Aho-Corasick. Immutable.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "model/tokenizer/markup_ranges.h"

namespace lockstep {

class AddedTokenMatcher {
 public:
  struct Token {
    int32_t id;
    std::string content;  // as it stands in the text to search, not empty
    bool special;
    bool lstrip, rstrip;
  };
  explicit AddedTokenMatcher(std::vector<Token> tokens);

  using TextSink = absl::FunctionRef<absl::Status(std::string_view text)>;
  using TokenSink = absl::FunctionRef<void(int32_t id)>;
  // Calls, in order, on_token for each match and on_text for each non-empty text between matches.
  // Special tokens that are not markup from one end to the other are ordinary text.
  absl::Status Split(std::string_view text, const MarkupRanges& markup, TextSink on_text,
                     TokenSink on_token) const;

 private:
  static constexpr int32_t kNone = -1;
  // The longest token that `text` begins with: an index into tokens_, or kNone.
  int32_t LongestAt(std::string_view text) const;
  size_t NextCandidate(std::string_view text, size_t from) const;

  std::vector<Token> tokens_;
  bool all_special_ = true;
  // A trie; node 0 is the root. An edge is (node << 8 | byte).
  absl::flat_hash_map<uint64_t, int32_t> edges_;
  std::vector<int32_t> token_at_;   // [num_nodes]: the token that ends here, or kNone
  std::array<bool, 256> begins_{};  // whether a token begins with the byte
};

}  // namespace lockstep
