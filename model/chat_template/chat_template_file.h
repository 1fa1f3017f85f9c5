// Where a checkpoint keeps its chat template: chat_template.jinja, else tokenizer_config.json's
// chat_template, which may be a list of named ones ("default", "tool_use"). With it come the
// special tokens that templates name. Pure but for reading files.
// Source: transformers' tokenization_utils_base.py (save_chat_templates).
#pragma once

#include <filesystem>
#include <string>

#include "absl/status/statusor.h"
#include "model/tokenizer/special_tokens.h"

namespace lockstep {

struct ChatTemplateFile {
  std::string source;       // empty: there is none
  std::string tool_source;  // for conversations with tools; empty: `source` is for them, too
  SpecialTokens special_tokens;
};

// instead: a file to take the template from, whatever the checkpoint has; empty = none. What is
// missing is empty. Errors: INVALID_ARGUMENT for what is malformed or larger than
// kMaxChatTemplateBytes; NOT_FOUND for `instead`.
absl::StatusOr<ChatTemplateFile> ReadChatTemplate(const std::filesystem::path& directory,
                                                  const std::filesystem::path& instead = {});

}  // namespace lockstep
