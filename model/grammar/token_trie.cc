#include "model/grammar/token_trie.h"

#include <algorithm>
#include <utility>

namespace lockstep::grammar {
namespace {

// Longer ones are left out: no vocabulary has them.
constexpr size_t kMaxTokenBytes = 4096;

size_t CommonBytes(std::string_view a, std::string_view b) {
  const size_t most = std::min(a.size(), b.size());
  return static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(most), b.begin()).first -
      a.begin());
}

}  // namespace

TokenTexts::TokenTexts(int32_t vocab_size, absl::FunctionRef<std::string(int32_t)> text_of) {
  ends_.reserve(static_cast<size_t>(vocab_size) + 1);
  for (int32_t token = 0; token < vocab_size; ++token) {
    const std::string text = text_of(token);
    if (text.size() <= kMaxTokenBytes) bytes_ += text;
    ends_.push_back(bytes_.size());
  }
}

TokenTrie::TokenTrie(const TokenTexts& texts, std::vector<int32_t> tokens)
    : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [&](int32_t a, int32_t b) { return texts.of(a) < texts.of(b); });
  std::vector<int32_t> open;  // nodes that lie on the way to the last token
  const auto close_from = [&](size_t depth) {
    for (; open.size() > depth; open.pop_back()) {
      nodes_[static_cast<size_t>(open.back())].after = static_cast<int32_t>(nodes_.size());
    }
  };
  std::string_view before;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view text = texts.of(tokens_[i]);
    const size_t common = CommonBytes(before, text);
    close_from(common);
    for (size_t depth = common; depth < text.size(); ++depth) {
      open.push_back(static_cast<int32_t>(nodes_.size()));
      nodes_.push_back({.first_token = static_cast<int32_t>(i),
                        .depth = static_cast<uint16_t>(depth),
                        .byte = static_cast<uint8_t>(text[depth])});
    }
    max_depth_ = std::max(max_depth_, static_cast<int32_t>(text.size()));
    before = text;
  }
  close_from(0);
  nodes_.push_back({.first_token = static_cast<int32_t>(tokens_.size())});
}

}  // namespace lockstep::grammar
