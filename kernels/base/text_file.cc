#include "kernels/base/text_file.h"

#include <fstream>

#include "absl/strings/str_cat.h"

namespace lockstep {

absl::StatusOr<std::string> ReadTextFile(const std::filesystem::path& path, int64_t max_bytes) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path.string(), ": no such file"));
  }
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": not a regular file"));
  }
  const std::uintmax_t num_bytes = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) {
    return absl::UnavailableError(absl::StrCat(path.string(), ": cannot be opened"));
  }
  if (num_bytes > static_cast<std::uintmax_t>(max_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.string(), ": ", num_bytes, " bytes, the limit is ", max_bytes));
  }
  std::string text(num_bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(num_bytes));
  if (static_cast<std::uintmax_t>(file.gcount()) == num_bytes) return text;
  return absl::UnavailableError(absl::StrCat(path.string(), ": cannot be read"));
}

absl::Status WriteTextFile(const std::filesystem::path& path, std::string_view text) {
  std::ofstream file(path, std::ios::trunc);
  file << text;
  file.close();
  if (file) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", path.string()));
}

absl::Status InFile(const std::filesystem::path& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path.string(), ": ", status.message()));
}

}  // namespace lockstep
