#include "launcher/http/web_origins.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"

namespace lockstep {

WebOrigins::WebOrigins(std::vector<std::string> permitted) : permitted_(std::move(permitted)) {
  for (std::string& origin : permitted_) absl::AsciiStrToLower(&origin);
}

std::string WebOrigins::Permitted(absl::string_view origin) const {
  if (origin.empty()) return "";
  if (absl::c_linear_search(permitted_, "*")) return "*";
  const bool is_permitted = absl::c_linear_search(permitted_, absl::AsciiStrToLower(origin));
  return is_permitted ? std::string(origin) : "";
}

}  // namespace lockstep
