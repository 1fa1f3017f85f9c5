// A chat template's text as tokens, with white space controlled as transformers sets Jinja up:
// trim_blocks and lstrip_blocks. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::jinja {

enum class TokenKind {
  kText,         // outside of all delimiters
  kOutputBegin,  // {{
  kOutputEnd,
  kBlockBegin,  // {%
  kBlockEnd,
  kName,
  kString,  // its escapes resolved
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  int line = 1;

  bool Is(TokenKind wanted, std::string_view wanted_text) const {
    return kind == wanted && text == wanted_text;
  }
};

// "line 3: MESSAGE" as INVALID_ARGUMENT.
absl::Status TemplateError(int line, absl::string_view message);

// Ends with kEnd. Errors: TemplateError.
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source);

}  // namespace lockstep::jinja
