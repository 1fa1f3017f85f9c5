#include "model/tokenizer/tokenizer_config.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/text_file.h"
#include "model/json/strict_json.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

absl::Status WrongType(const char* name, const Json& value, const char* wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", QuotedJson(value), ", not ", wanted));
}

// An unnamed class may be one of them.
absl::StatusOr<bool> HeedsAddBos(const Json& document) {
  const Json name = document.value("tokenizer_class", Json());
  if (name.is_null()) return true;
  if (!name.is_string()) return WrongType("tokenizer_class", name, "a name");
  return name.get<std::string>().starts_with("Llama");
}

absl::StatusOr<std::optional<std::string>> AddedBos(std::string_view text) {
  ASSIGN_OR_RETURN(const Json document, ParseStrictJson(text));
  if (!document.is_object()) return absl::InvalidArgumentError("not a JSON object");
  const Json add = document.value("add_bos_token", Json());
  if (!add.is_null() && !add.is_boolean()) return WrongType("add_bos_token", add, "true or false");
  ASSIGN_OR_RETURN(const bool heeds, HeedsAddBos(document));
  if (add != Json(true) || !heeds) return std::nullopt;
  const Json bos = document.value("bos_token", Json());
  const Json content = bos.is_object() ? bos.value("content", Json()) : bos;  // an AddedToken
  if (!content.is_string()) {
    return WrongType("bos_token", bos, "a token, which add_bos_token: true needs");
  }
  return content.get<std::string>();
}

}  // namespace

absl::StatusOr<std::optional<std::string>> ParseAddedBos(std::string_view tokenizer_config_json) {
  auto bos = AddedBos(tokenizer_config_json);
  if (!bos.ok()) return InFile("tokenizer_config.json", bos.status());
  return bos;
}

}  // namespace lockstep
