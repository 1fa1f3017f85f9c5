// Small files of text. Any thread.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep::plan {

// At most 16 MiB. NOT_FOUND, INVALID_ARGUMENT.
absl::StatusOr<std::string> ReadTextFile(const std::filesystem::path& path);
// In place of what the file held. UNAVAILABLE.
absl::Status WriteTextFile(const std::filesystem::path& path, std::string_view text);
// "PATH: message".
absl::Status InFile(const std::filesystem::path& path, const absl::Status& status);

}  // namespace lockstep::plan
