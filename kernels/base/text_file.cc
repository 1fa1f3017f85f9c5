#include "kernels/base/text_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>

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
  if (!error && num_bytes > static_cast<std::uintmax_t>(max_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.string(), ": ", num_bytes, " bytes, the limit is ", max_bytes));
  }
  return ReadWhole(path, max_bytes);
}

absl::StatusOr<std::string> ReadWhole(const std::filesystem::path& path, int64_t max_bytes) {
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "rb"));
  if (file != nullptr) return ReadWhole(*file, path.string(), max_bytes);
  const absl::StatusCode code =
      errno == ENOENT ? absl::StatusCode::kNotFound : absl::StatusCode::kUnavailable;
  return absl::Status(code,
                      absl::StrCat("cannot read ", path.string(), ": ", std::strerror(errno)));
}

absl::StatusOr<std::string> ReadWhole(std::FILE& file, const std::string& name, int64_t max_bytes) {
  std::string text;
  char buffer[1 << 16];
  size_t count = 0;
  while ((count = std::fread(buffer, 1, sizeof(buffer), &file)) > 0) {
    text.append(buffer, count);
    if (text.size() > static_cast<size_t>(max_bytes)) {
      return absl::InvalidArgumentError(absl::StrCat(name, " has more than ", max_bytes, " bytes"));
    }
  }
  if (std::ferror(&file) == 0) return text;
  return absl::UnavailableError(absl::StrCat("cannot read ", name, ": ", std::strerror(errno)));
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
