// A private directory for one launch: the workers' socket, mpirun's session files.
// Removed with everything in it when the object goes.
//
// The directory has mode 0700 and lies in $XDG_RUNTIME_DIR, else $TMPDIR, else /tmp. A lock held on
// a file inside says that its owner lives, so the next launch can remove what a killed one left.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/base/fd.h"

namespace lockstep {

class RuntimeDir {
 public:
  // Also removes this user's directories whose owners are gone. UNAVAILABLE naming the path and the
  // reason.
  static absl::StatusOr<RuntimeDir> Create();
  // The same in memory (/dev/shm), for what the ranks share: mpirun does not remove the segments of
  // ranks that were killed. Also removes what ranks left there that were killed while they started.
  static absl::StatusOr<RuntimeDir> CreateInMemory();
  RuntimeDir(RuntimeDir&&) = default;
  RuntimeDir& operator=(RuntimeDir&&) = delete;
  ~RuntimeDir();

  const std::filesystem::path& path() const { return path_; }
  // UNAVAILABLE, with both numbers, where its file system has no room for so many bytes.
  absl::Status CheckRoom(int64_t num_bytes) const;

 private:
  static absl::StatusOr<RuntimeDir> CreateIn(const std::filesystem::path& parent);
  RuntimeDir(std::filesystem::path path, Fd lock)
      : path_(std::move(path)), lock_(std::move(lock)) {}
  std::filesystem::path path_;
  Fd lock_;
};

// 32 random bytes as hexadecimal digits. UNAVAILABLE when the kernel gives none.
absl::StatusOr<std::string> DrawSecret();
// A new file of mode 0600; UNAVAILABLE when it exists or cannot be made.
absl::Status WriteNewSecretFile(const std::filesystem::path& path, absl::string_view secret);
// The first line of a secret file. FAILED_PRECONDITION when others may read it, INVALID_ARGUMENT
// when it is empty.
absl::StatusOr<std::string> ReadSecretFile(const std::filesystem::path& path);
// What comes before the first line's end or the end of the file, at most 4096 bytes; waits for it.
std::string ReadLine(int fd);

}  // namespace lockstep
