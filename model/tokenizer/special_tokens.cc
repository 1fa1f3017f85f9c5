#include "model/tokenizer/special_tokens.h"

#include "kernels/base/status_macros.h"
#include "kernels/base/text_file.h"
#include "model/json/strict_json.h"
#include "model/tokenizer/tokenizer_config.h"
#include "model/tokenizer/tokenizer_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kRoles[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                  "pad_token", "cls_token", "mask_token"};

absl::StatusOr<Json> ParseObject(const std::string& text) {
  ASSIGN_OR_RETURN(Json object, ParseStrictJson(text));
  if (!object.is_object()) return absl::InvalidArgumentError("not a JSON object");
  return object;
}

// Those that are not known yet.
absl::Status TakeTokens(const fs::path& path, SpecialTokens& tokens) {
  const absl::StatusOr<std::string> text = ReadTextFile(path, kMaxTokenizerConfigBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  RETURN_IF_ERROR(text.status());
  const absl::StatusOr<Json> document = ParseObject(*text);
  if (!document.ok()) return InFile(path, document.status());
  for (const char* role : kRoles) {
    const Json token = document->value(role, Json());
    const Json content = token.is_object() ? token.value("content", Json()) : token;
    if (content.is_string()) tokens.emplace(role, content.get<std::string>());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SpecialTokens> ReadSpecialTokens(const fs::path& directory) {
  SpecialTokens tokens;
  RETURN_IF_ERROR(TakeTokens(directory / "tokenizer_config.json", tokens));
  RETURN_IF_ERROR(TakeTokens(directory / "special_tokens_map.json", tokens));
  return tokens;
}

std::optional<int32_t> FindEndToken(const fs::path& directory) {
  const absl::StatusOr<SpecialTokens> tokens = ReadSpecialTokens(directory);
  if (!tokens.ok()) return std::nullopt;
  const auto end = tokens->find("eos_token");
  if (end == tokens->end()) return std::nullopt;
  const auto text = ReadTextFile(directory / "tokenizer.json", kMaxTokenizerFileBytes);
  return text.ok() ? FindTokenId(*text, end->second) : std::nullopt;
}

}  // namespace lockstep
