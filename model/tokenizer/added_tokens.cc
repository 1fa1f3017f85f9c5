#include "model/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "kernels/base/status_macros.h"
#include "model/tokenizer/utf8.h"

namespace lockstep {
namespace {

uint64_t Edge(int32_t node, char byte) {
  return (uint64_t{static_cast<uint32_t>(node)} << 8) | static_cast<uint8_t>(byte);
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
  token_at_.push_back(kNone);
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const Token& token = tokens_[i];
    all_special_ = all_special_ && token.special;
    begins_[static_cast<uint8_t>(token.content[0])] = true;
    int32_t node = 0;
    for (const char byte : token.content) {
      const auto [edge, added] =
          edges_.try_emplace(Edge(node, byte), static_cast<int32_t>(token_at_.size()));
      if (added) token_at_.push_back(kNone);
      node = edge->second;
    }
    token_at_[node] = static_cast<int32_t>(i);
  }
}

int32_t AddedTokenMatcher::LongestAt(std::string_view text) const {
  int32_t longest = kNone;
  int32_t node = 0;
  for (const char byte : text) {
    const auto edge = edges_.find(Edge(node, byte));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (token_at_[node] != kNone) longest = token_at_[node];
  }
  return longest;
}

size_t AddedTokenMatcher::NextCandidate(std::string_view text, size_t from) const {
  while (from < text.size() && !begins_[static_cast<uint8_t>(text[from])]) ++from;
  return from;
}

absl::Status AddedTokenMatcher::Split(std::string_view text, const MarkupRanges& markup,
                                      TextSink on_text, TokenSink on_token) const {
  size_t emitted = 0;  // text before this is out
  const bool any_wanted = !tokens_.empty() && (!markup.empty() || !all_special_);
  size_t at = any_wanted ? 0 : text.size();
  while ((at = NextCandidate(text, at)) < text.size()) {
    const int32_t index = LongestAt(text.substr(at));
    if (index == kNone) {
      ++at;
      continue;
    }
    const Token& token = tokens_[index];
    size_t start = at;
    const size_t end = at + token.content.size();
    if (token.special && !markup.Covers(start, end)) {
      // An unwanted special token still hides the tokens inside of it, as in HF; but what somebody
      // said hides no markup.
      at = markup.Overlaps(start, end) ? start + 1 : end;
      continue;
    }
    at = end;
    if (token.lstrip) start = SkipBackward(text, std::min(emitted, start), start, &IsWhiteSpace);
    if (start > emitted) RETURN_IF_ERROR(on_text(text.substr(emitted, start - emitted)));
    on_token(token.id);
    // A token in white space that the one before has taken gives back what comes after it, as in
    // HF.
    emitted = token.rstrip ? SkipForward(text, at, &IsWhiteSpace) : at;
  }
  return emitted < text.size() ? on_text(text.substr(emitted)) : absl::OkStatus();
}

}  // namespace lockstep
