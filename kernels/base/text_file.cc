#include "kernels/base/text_file.h"

#include <cerrno>
#include <cstdio>
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

absl::StatusOr<std::string> ReadWhole(const std::string& path, int64_t max_bytes) {
  struct Close {
    void operator()(std::FILE* file) const {
      if (file != stdin) std::fclose(file);
    }
  };
  const std::unique_ptr<std::FILE, Close> file(path == "-" ? stdin
                                                           : std::fopen(path.c_str(), "rb"));
  if (!file) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  }
  std::string text;
  char buffer[1 << 16];
  size_t count = 0;
  while ((count = std::fread(buffer, 1, sizeof(buffer), file.get())) > 0) {
    text.append(buffer, count);
    if (text.size() > static_cast<size_t>(max_bytes)) {
      return absl::InvalidArgumentError(absl::StrCat(path, " has more than ", max_bytes, " bytes"));
    }
  }
  if (std::ferror(file.get()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  }
  return text;
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
