// Files of text that fit in memory. Any thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {

// Errors name the file, here and below: NOT_FOUND; INVALID_ARGUMENT: no regular file, or more than
// max_bytes; UNAVAILABLE.
absl::StatusOr<std::string> ReadTextFile(const std::filesystem::path& path,
                                         int64_t max_bytes = 16 << 20);
// Whatever can be read to its end, pipes too. NOT_FOUND, INVALID_ARGUMENT: more than max_bytes;
// UNAVAILABLE.
absl::StatusOr<std::string> ReadWhole(const std::filesystem::path& path, int64_t max_bytes);
absl::StatusOr<std::string> ReadWhole(std::FILE& file, const std::string& name, int64_t max_bytes);
// In place of what the file held. UNAVAILABLE.
absl::Status WriteTextFile(const std::filesystem::path& path, std::string_view text);
// "PATH: message".
absl::Status InFile(const std::filesystem::path& path, const absl::Status& status);

}  // namespace lockstep
