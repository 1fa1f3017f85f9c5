#include "launcher/gateway/ordered_values.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/json/strict_json.h"

namespace lockstep {

absl::Status CheckValueBytes(size_t num_bytes) {
  if (num_bytes <= kMaxValueBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("tools, chat_template_kwargs and arguments of calls have ", num_bytes,
                   " bytes: at most ", kMaxValueBytes));
}

absl::StatusOr<nlohmann::ordered_json> OrderedField(absl::string_view body, const char* name,
                                                    const nlohmann::json& value) {
  RETURN_IF_ERROR(
      CheckValueBytes(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).size()));
  return ParseStrictOrderedField({body.data(), body.size()}, name, kMaxValueDepth);
}

}  // namespace lockstep
