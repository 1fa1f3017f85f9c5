#include "launcher/client/prompts.h"

#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/text_file.h"
#include "launcher/cli/add_command.h"
#include "launcher/cli/values.h"

namespace lockstep {
namespace {

absl::Status AddText(std::string text, std::vector<Prompt>& prompts) {
  if (const auto offset = FirstInvalidUtf8(text)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt ", prompts.size() + 1, " is not UTF-8 text: invalid byte at offset ", *offset));
  }
  prompts.push_back({std::move(text), {}});
  return absl::OkStatus();
}

absl::Status AddFile(const PromptSources& sources, const std::string& path,
                     std::vector<Prompt>& prompts) {
  ASSIGN_OR_RETURN(std::string text, ReadFileOrStdin(path));
  if (!sources.one_per_line) {
    // The newline with which editors and echo end a file is not part of the prompt.
    return AddText(std::string(absl::StripSuffix(text, "\n")), prompts);
  }
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipWhitespace())) {
    // Files of Windows end their lines with \r\n.
    RETURN_IF_ERROR(AddText(std::string(absl::StripSuffix(line, "\r")), prompts));
  }
  return absl::OkStatus();
}

}  // namespace

void AddPromptFlags(CLI::App& command, PromptSources& sources) {
  AddTexts(command, "prompt", sources.texts,
           "prompts; none = read one from standard input; after -- also those that begin with a "
           "dash")
      ->type_name("TEXT");
  command
      .add_option("--prompt-file", sources.file, "read the prompt from a file; - = standard input")
      ->type_name("FILE")
      ->group("Prompt");
  command
      .add_flag("--lines", sources.one_per_line,
                "every line of the file or of standard input is a prompt")
      ->group("Prompt");
  AddTexts(command, "--token-ids", sources.token_ids,
           "a prompt as token ids, \"1,2,3\"; may be repeated")
      ->type_name("IDS")
      ->group("Prompt");
}

absl::StatusOr<std::string> ReadFileOrStdin(const std::string& path) {
  constexpr int64_t kMaxBytes = 256 << 20;
  return path == "-" ? ReadWhole(*stdin, "standard input", kMaxBytes) : ReadWhole(path, kMaxBytes);
}

absl::StatusOr<std::vector<Prompt>> ReadPrompts(const PromptSources& sources) {
  std::vector<Prompt> prompts;
  for (const std::string& text : sources.texts) RETURN_IF_ERROR(AddText(text, prompts));
  for (const std::string& text : sources.token_ids) {
    ASSIGN_OR_RETURN(std::vector<int32_t> ids, ParseTokenIds(text));
    prompts.push_back({text, std::move(ids)});
  }
  if (!sources.file.empty()) {
    RETURN_IF_ERROR(AddFile(sources, sources.file, prompts));
  } else if (prompts.empty()) {
    if (::isatty(STDIN_FILENO) == 1) {
      std::fprintf(stderr, "Type the prompt, then Ctrl-D on a line of its own.\n");
    }
    RETURN_IF_ERROR(AddFile(sources, "-", prompts));
  }
  if (prompts.empty()) return absl::InvalidArgumentError("no prompt given: the input is empty");
  return prompts;
}

void SetPrompt(const Prompt& prompt, v1::GenerateRequest& request) {
  if (prompt.token_ids.empty()) {
    request.set_text(prompt.shown);
  } else {
    request.mutable_token_ids()->mutable_ids()->Assign(prompt.token_ids.begin(),
                                                       prompt.token_ids.end());
  }
  if (request.has_constraint()) request.mutable_constraint()->set_thought(prompt.thought);
}

}  // namespace lockstep
