#include "model/chat_template/chat_template_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/text_file.h"
#include "model/chat_template/chat_template.h"
#include "model/json/strict_json.h"
#include "model/tokenizer/tokenizer_config.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

absl::Status BadTemplate(const Json& value) {
  return absl::InvalidArgumentError(absl::StrCat("chat_template is ", QuotedJson(value),
                                                 ", neither a text nor a list of named ones"));
}

absl::Status TakeTemplates(const Json& value, ChatTemplateFile& file) {
  if (value.is_null()) return absl::OkStatus();
  if (value.is_string()) {
    file.source = value.get<std::string>();
    return absl::OkStatus();
  }
  if (!value.is_array()) return BadTemplate(value);
  for (const Json& entry : value) {
    const Json name = entry.is_object() ? entry.value("name", Json()) : Json();
    const Json text = entry.is_object() ? entry.value("template", Json()) : Json();
    if (!name.is_string() || !text.is_string()) return BadTemplate(entry);
    if (name == "default") file.source = text.get<std::string>();
    if (name == "tool_use") file.tool_source = text.get<std::string>();
  }
  return absl::OkStatus();
}

absl::Status TakeConfig(const std::string& text, ChatTemplateFile& file) {
  ASSIGN_OR_RETURN(const Json config, ParseStrictJson(text));
  if (!config.is_object()) return absl::InvalidArgumentError("not a JSON object");
  return TakeTemplates(config.value("chat_template", Json()), file);
}

// nullopt: there is none.
absl::StatusOr<std::optional<std::string>> ReadIfThere(const std::filesystem::path& path,
                                                       int64_t max_bytes) {
  absl::StatusOr<std::string> text = ReadTextFile(path, max_bytes);
  if (absl::IsNotFound(text.status())) return std::nullopt;
  RETURN_IF_ERROR(text.status());
  return *std::move(text);
}

absl::Status CheckSize(const std::string& source) {
  if (source.size() <= kMaxChatTemplateBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the chat template has ", source.size(),
                                                 " bytes, more than ", kMaxChatTemplateBytes));
}

}  // namespace

absl::StatusOr<ChatTemplateFile> ReadChatTemplate(const std::filesystem::path& directory,
                                                  const std::filesystem::path& instead) {
  ChatTemplateFile file;
  ASSIGN_OR_RETURN(file.special_tokens, ReadSpecialTokens(directory));
  const std::filesystem::path config_path = directory / "tokenizer_config.json";
  ASSIGN_OR_RETURN(const auto config, ReadIfThere(config_path, kMaxTokenizerConfigBytes));
  if (config) {
    const absl::Status taken = TakeConfig(*config, file);
    if (!taken.ok()) return InFile(config_path, taken);
  }
  ASSIGN_OR_RETURN(auto own, ReadIfThere(directory / "chat_template.jinja", kMaxChatTemplateBytes));
  if (own) file.source = *std::move(own);
  if (!instead.empty()) {
    ASSIGN_OR_RETURN(file.source, ReadTextFile(instead, kMaxChatTemplateBytes));
    file.tool_source.clear();
  }
  RETURN_IF_ERROR(CheckSize(file.source));
  RETURN_IF_ERROR(CheckSize(file.tool_source));
  return file;
}

}  // namespace lockstep
