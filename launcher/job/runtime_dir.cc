#include "launcher/job/runtime_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "launcher/cli/values.h"
#include "parallel/shared_region_name.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "lockstep-serve-";
constexpr char kNewPrefix[] = "lockstep-new-";  // until it is locked
constexpr char kMemoryDirectory[] = "/dev/shm";
constexpr char kLockName[] = "lock";
constexpr std::chrono::minutes kMaxAgeWithoutLock{1};
constexpr size_t kMaxSecretBytes = 4096;

absl::Status Unavailable(absl::string_view what, const fs::path& path) {
  return absl::UnavailableError(absl::StrCat(what, " ", path.string(), ": ", std::strerror(errno)));
}

fs::path ParentDirectory() {
  for (const char* name : {"XDG_RUNTIME_DIR", "TMPDIR"}) {
    const char* value = std::getenv(name);
    std::error_code error;
    // Socket paths hold 107 bytes (sockaddr_un), so a deep directory cannot be used; nor one whose
    // name means something in a URI, as which gRPC takes it.
    if (value != nullptr && std::strlen(value) < 60 && std::strpbrk(value, "%,?#") == nullptr &&
        fs::is_directory(value, error) && ::access(value, W_OK | X_OK) == 0) {
      return value;
    }
  }
  return "/tmp";
}

bool IsOld(const fs::path& path) {
  std::error_code error;
  const auto age = fs::file_time_type::clock::now() - fs::last_write_time(path, error);
  return !error && age > kMaxAgeWithoutLock;
}

bool IsOwnDirectory(const fs::path& path) {
  struct stat info;
  return ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid();
}

// Memory of ranks that were killed before all had it: its name lasts for milliseconds.
bool IsAbandonedMemory(const fs::path& file) {
  struct stat info;
  return absl::StartsWith(file.filename().string(), kSharedRegionPrefix) &&
         ::lstat(file.c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == ::geteuid() &&
         IsOld(file);
}

// Of the rest, one without a lock file is what a dying mpirun put back, and a new one's maker may
// have died.
bool IsAbandoned(const fs::path& directory, Fd& lock) {
  const bool is_new = absl::StartsWith(directory.filename().string(), kNewPrefix);
  if (!is_new) {
    lock = Fd(::open((directory / kLockName).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (lock.valid()) return ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0;
    if (errno != ENOENT) return false;
  }
  return IsOld(directory);
}

void RemoveAbandoned(const fs::path& parent) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, error)) {
    Fd lock;
    const std::string name = entry.path().filename().string();
    if ((absl::StartsWith(name, kPrefix) || absl::StartsWith(name, kNewPrefix)) &&
        IsOwnDirectory(entry.path()) && IsAbandoned(entry.path(), lock)) {
      fs::remove_all(entry.path(), error);
    }
    if (parent == kMemoryDirectory && IsAbandonedMemory(entry.path())) {
      fs::remove(entry.path(), error);
    }
  }
}

}  // namespace

absl::StatusOr<RuntimeDir> RuntimeDir::Create() { return CreateIn(ParentDirectory()); }

absl::StatusOr<RuntimeDir> RuntimeDir::CreateInMemory() {
  return ::access(kMemoryDirectory, W_OK | X_OK) == 0 ? CreateIn(kMemoryDirectory) : Create();
}

absl::StatusOr<RuntimeDir> RuntimeDir::CreateIn(const fs::path& parent) {
  RemoveAbandoned(parent);
  std::string name = (parent / absl::StrCat(kNewPrefix, "XXXXXX")).string();
  if (::mkdtemp(name.data()) == nullptr) return Unavailable("cannot create", name);  // mode 0700
  Fd lock(
      ::open((fs::path(name) / kLockName).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!lock.valid() || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return Unavailable("cannot lock", name);
  }
  // Others take what has its last name and no lock for abandoned.
  const fs::path path = parent / absl::StrCat(kPrefix, name.substr(name.size() - 6));
  if (::rename(name.c_str(), path.c_str()) != 0) return Unavailable("cannot create", path);
  return RuntimeDir(path, std::move(lock));
}

absl::Status RuntimeDir::CheckRoom(int64_t num_bytes) const {
  struct statvfs info;
  if (::statvfs(path_.c_str(), &info) != 0) return Unavailable("cannot look at", path_);
  const uint64_t num_free = static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  if (num_free >= static_cast<uint64_t>(num_bytes)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      path_.parent_path().string(), " has ", FormatBytes(static_cast<int64_t>(num_free)),
      " free, and ranks exchange through ", FormatBytes(num_bytes),
      " there: give it more (docker run --shm-size, Kubernetes: an emptyDir in memory)"));
}

RuntimeDir::~RuntimeDir() {
  if (!lock_.valid()) return;  // moved from
  std::error_code error;
  fs::remove_all(path_, error);
}

absl::Status WriteNewSecretFile(const fs::path& path, absl::string_view secret) {
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid()) return Unavailable("cannot create", path);
  const std::string line = absl::StrCat(secret, "\n");
  if (::write(file.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return Unavailable("cannot write", path);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> DrawSecret() {
  std::string bytes(32, '\0');
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return absl::UnavailableError(absl::StrCat("getrandom: ", std::strerror(errno)));
  }
  return absl::BytesToHexString(bytes);
}

absl::StatusOr<std::string> ReadSecretFile(const fs::path& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return Unavailable("cannot read the secret file", path);
  struct stat info;
  if (::fstat(file.get(), &info) != 0) return Unavailable("cannot read", path);
  if ((info.st_mode & 077) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "others may read the secret file ", path.string(), ": run chmod 600 ", path.string()));
  }
  std::string content = ReadLine(file.get());
  if (content.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the secret file ", path.string(), " is empty"));
  }
  return content;
}

std::string ReadLine(int fd) {
  std::string line;
  for (char c = 0; line.size() < kMaxSecretBytes;) {
    const ssize_t count = ::read(fd, &c, 1);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0 || c == '\n') break;
    line.push_back(c);
  }
  return line;
}

}  // namespace lockstep
