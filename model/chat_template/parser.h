// A chat template's tokens as a tree. Pure.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "model/chat_template/syntax.h"

namespace lockstep::jinja {

// Errors: TemplateError (lexer.h), also for what templates of conversations do not need (include,
// extends, import, call, filter blocks) and for nesting that is too deep.
absl::StatusOr<Body> ParseTemplate(std::string_view source);

}  // namespace lockstep::jinja
