// Small files of text. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {

// Errors name the file: NOT_FOUND; INVALID_ARGUMENT: no regular file, or more than max_bytes;
// UNAVAILABLE.
absl::StatusOr<std::string> ReadTextFile(const std::filesystem::path& path,
                                         int64_t max_bytes = 16 << 20);
// In place of what the file held. UNAVAILABLE.
absl::Status WriteTextFile(const std::filesystem::path& path, std::string_view text);
// "PATH: message".
absl::Status InFile(const std::filesystem::path& path, const absl::Status& status);

}  // namespace lockstep
