#include "runtime/security/credential_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lockstep {
namespace {

constexpr off_t kMaxFileBytes = 1 << 20;

bool IsPrivate(const struct stat& info) {
  const mode_t forbidden = info.st_uid == 0 ? 037 : 077;
  return (info.st_mode & forbidden) == 0;
}

}  // namespace

absl::StatusOr<std::string> ReadCredentialFile(const std::string& path, absl::string_view what,
                                               FileAccess access) {
  const std::string name = absl::StrCat(what, " ", path);
  // Without waiting: a path that names a pipe must not hold up the start.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const std::string message = absl::StrCat(name, ": ", std::strerror(errno));
    return errno == ENOENT ? absl::NotFoundError(message) : absl::UnavailableError(message);
  }
  const absl::Cleanup close_file = [fd] { ::close(fd); };
  struct stat info;
  if (::fstat(fd, &info) != 0) {
    return absl::UnavailableError(absl::StrCat(name, ": ", std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(name + " is not a regular file");
  if (access == FileAccess::kPrivate && !IsPrivate(info)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s can be read by others (mode %04o): run chmod 600 %s", name,
                        info.st_mode & 07777, path));
  }
  if (info.st_size == 0 || info.st_size > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " has ", info.st_size, " bytes; allowed are 1 to ", kMaxFileBytes));
  }
  std::string content(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t count = ::read(fd, content.data() + done, content.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return absl::UnavailableError(name + " cannot be read to its end");
    done += static_cast<size_t>(count);
  }
  return content;
}

}  // namespace lockstep
