#include "launcher/gateway/access_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<AccessLog>> AccessLog::Open(const std::string& path) {
  Fd fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0640));
  if (fd.get() < 0) return absl::ErrnoToStatus(errno, absl::StrCat("access log ", path));
  return std::unique_ptr<AccessLog>(new AccessLog(path, std::move(fd)));
}

void AccessLog::Write(const nlohmann::ordered_json& entry) {
  // ASCII alone: clients choose paths, terminals obey C1 controls and turn at bidirectional marks.
  const std::string line =
      (is_torn_ ? "\n" : "") +
      entry.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::ordered_json::error_handler_t::replace) +
      "\n";
  const ssize_t written = ::write(fd_.get(), line.data(), line.size());
  if (written > 0) is_torn_ = written < static_cast<ssize_t>(line.size());
  if (written == static_cast<ssize_t>(line.size())) {
    if (num_lost_ > 0) {
      std::fprintf(stderr, "Warning  access log %s: goes on, %ld lines were lost\n", path_.c_str(),
                   static_cast<long>(num_lost_));
    }
    num_lost_ = 0;
  } else if (num_lost_++ == 0) {
    std::fprintf(stderr, "Warning  access log %s: lines are lost: %s\n", path_.c_str(),
                 written < 0 ? std::strerror(errno) : "there is no room");
  }
}

}  // namespace lockstep
