// Where prompts come from: the command line, a file, standard input, or token ids.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/command.h"
#include "lockstep/v1/generation.pb.h"

namespace lockstep {

struct PromptSources {
  std::vector<std::string> texts;
  std::string file;  // "-" = standard input
  bool one_per_line = false;
  std::vector<std::string> token_ids;  // "1,2,3" each
};

struct Prompt {
  std::string shown;                       // its text; of token ids, what the user typed
  std::vector<int32_t> token_ids;          // used instead of the text when not empty
  v1::Thought thought = v1::THOUGHT_NONE;  // that may come before a constrained output
};

void AddPromptFlags(CLI::App& command, PromptSources& sources);

// All prompts of all sources, at least one; standard input when nothing else is given. NOT_FOUND
// (file), INVALID_ARGUMENT (nothing given, invalid UTF-8 with its offset, malformed ids).
absl::StatusOr<std::vector<Prompt>> ReadPrompts(const PromptSources& sources);
void SetPrompt(const Prompt& prompt, v1::GenerateRequest& request);

// A file of prompts, or standard input for "-". Errors as ReadWhole (kernels/base/text_file.h).
absl::StatusOr<std::string> ReadFileOrStdin(const std::string& path);

}  // namespace lockstep
