#include "model/checkpoint/model_name.h"

#include <system_error>

#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace lockstep {

std::string ModelNameOf(const std::filesystem::path& directory) {
  std::error_code ignored;
  std::filesystem::path full = std::filesystem::absolute(directory, ignored).lexically_normal();
  if (full.filename().empty()) full = full.parent_path();  // "model/", "."
  const std::string repository = full.parent_path().parent_path().filename().string();
  absl::string_view id = repository;
  if (full.parent_path().filename() == "snapshots" && absl::ConsumePrefix(&id, "models--")) {
    return absl::StrReplaceAll(id, {{"--", "/"}});
  }
  return full.filename().string();
}

}  // namespace lockstep
