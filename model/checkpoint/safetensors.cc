#include "model/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/text_file.h"
#include "model/checkpoint/safetensors_header.h"
#include "model/json/strict_json.h"

namespace lockstep {
namespace {

constexpr int64_t kPrefixBytes = 8;  // u64, the header's length

uint64_t DecodeLittleEndian64(const unsigned char* bytes) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | bytes[i];
  return value;
}

absl::StatusOr<int64_t> RegularFileSize(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return absl::UnavailableError(std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError("not a regular file");
  return static_cast<int64_t>(info.st_size);
}

}  // namespace

SafetensorsFile::~SafetensorsFile() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(
    const std::filesystem::path& path) {
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile());
  file->path_ = path;
  // O_NONBLOCK: opening a FIFO must not wait for its writer; regular files ignore it.
  file->fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file->fd_ < 0) {
    const int error = errno;
    const std::string message = absl::StrCat(path.string(), ": ", std::strerror(error));
    return error == ENOENT ? absl::NotFoundError(message) : absl::UnavailableError(message);
  }
  if (absl::Status status = file->ReadHeader(); !status.ok()) return InFile(path, status);
  // Loaders walk tensors front to back; a larger read-ahead helps the kernel keep the device busy.
  posix_fadvise(file->fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
  return file;
}

absl::Status SafetensorsFile::ReadHeader() {
  ASSIGN_OR_RETURN(const int64_t file_bytes, RegularFileSize(fd_));
  if (file_bytes < kPrefixBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the file has ", file_bytes,
                                                   " bytes, fewer than ", kPrefixBytes,
                                                   "; it is no safetensors file"));
  }
  unsigned char prefix[kPrefixBytes];
  RETURN_IF_ERROR(ReadFully(0, kPrefixBytes, prefix));
  char start[32];
  if (file_bytes >= std::ssize(start)) {
    RETURN_IF_ERROR(ReadFully(0, std::ssize(start), start));
    if (IsLfsPointer({start, sizeof(start)})) return absl::InvalidArgumentError(kLfsPointer);
  }
  const uint64_t header_bytes = DecodeLittleEndian64(prefix);
  if (header_bytes > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return absl::InvalidArgumentError(absl::StrCat("the header's length is ", header_bytes,
                                                   " bytes, the limit is ",
                                                   kMaxSafetensorsHeaderBytes));
  }
  const int64_t data_begin = kPrefixBytes + static_cast<int64_t>(header_bytes);
  if (data_begin > file_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the header ends at byte ", data_begin,
                                                   " but the file at ", file_bytes,
                                                   "; the file is truncated: download it again"));
  }
  std::string header(header_bytes, '\0');
  RETURN_IF_ERROR(ReadFully(kPrefixBytes, static_cast<int64_t>(header_bytes), header.data()));
  absl::StatusOr<std::vector<TensorInfo>> tensors =
      ParseSafetensorsHeader(header, data_begin, file_bytes - data_begin);
  if (!tensors.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("header: ", tensors.status().message()));
  }
  tensors_ = *std::move(tensors);
  return absl::OkStatus();
}

absl::Status SafetensorsFile::ReadFully(int64_t offset, int64_t num_bytes, void* dst) const {
  char* out = static_cast<char*>(dst);
  while (num_bytes > 0) {
    // Linux transfers at most 0x7ffff000 bytes per call.
    const size_t request = static_cast<size_t>(std::min<int64_t>(num_bytes, int64_t{1} << 30));
    const ssize_t got = pread(fd_, out, request, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return absl::UnavailableError(
          absl::StrCat("reading ", request, " bytes at ", offset, ": ", std::strerror(errno)));
    }
    if (got == 0) {
      return absl::UnavailableError(absl::StrCat("the file ends at byte ", offset, ", ", num_bytes,
                                                 " bytes early; it was truncated while in use"));
    }
    out += got;
    offset += got;
    num_bytes -= got;
  }
  return absl::OkStatus();
}

absl::Status SafetensorsFile::ReadAt(int64_t offset, int64_t num_bytes, void* dst) const {
  absl::Status status = ReadFully(offset, num_bytes, dst);
  return status.ok() ? status : InFile(path_, status);
}

}  // namespace lockstep
