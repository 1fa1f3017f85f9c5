// A vocabulary by its bytes: which tokens go on a text is found by one walk over all of them, in
// which tokens that begin alike share the beginning.
//
// Immutable; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"

namespace lockstep::grammar {

// What every token adds to a text.
class TokenTexts {
 public:
  // text_of: empty for those that are none, as special ones. vocab_size >= 0.
  TokenTexts(int32_t vocab_size, absl::FunctionRef<std::string(int32_t)> text_of);

  int32_t size() const { return static_cast<int32_t>(ends_.size()) - 1; }
  std::string_view of(int32_t token) const {
    const auto i = static_cast<size_t>(token);
    return std::string_view(bytes_).substr(ends_[i], ends_[i + 1] - ends_[i]);
  }

 private:
  std::string bytes_;
  std::vector<size_t> ends_ = {0};
};

class TokenTrie {
 public:
  // Of tokens that are not empty, each once.
  TokenTrie(const TokenTexts& texts, std::vector<int32_t> tokens);

  // In the order of a walk that goes down first.
  struct Node {
    int32_t after = 0;        // the next node that does not lie below
    int32_t first_token = 0;  // its tokens begin there; the next node's after them
    uint16_t depth = 0;       // bytes before this one's
    uint8_t byte = 0;
  };
  std::span<const Node> nodes() const { return std::span(nodes_).first(nodes_.size() - 1); }
  std::span<const int32_t> tokens(int64_t node) const {
    const auto i = static_cast<size_t>(node);
    return std::span(tokens_).subspan(
        static_cast<size_t>(nodes_[i].first_token),
        static_cast<size_t>(nodes_[i + 1].first_token - nodes_[i].first_token));
  }
  int32_t max_depth() const { return max_depth_; }  // bytes of the longest token

 private:
  std::vector<Node> nodes_;  // and one more
  std::vector<int32_t> tokens_;
  int32_t max_depth_ = 0;
};

}  // namespace lockstep::grammar
