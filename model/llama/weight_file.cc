#include "model/llama/weight_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/text_file.h"
#include "model/llama/weight_digest.h"
#include "model/llama/weight_file_header.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPage = 4096;
constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kMaxRegionsEnd = int64_t{1} << 60;
constexpr int64_t kPieceBytes = int64_t{16} << 20;  // that digests are made of
constexpr int kMaxLockTries = 250;
constexpr auto kLockInterval = std::chrono::milliseconds(10);
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14; madvise(2)
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1
#endif

absl::Status Unavailable(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Whether writing through a mapping can fail for want of room: not in memory files (memfd_create),
// whose file system has no size.
bool HasLimitedSize(int fd) {
  struct statfs info;
  return ::fstatfs(fd, &info) != 0 || info.f_blocks > 0;
}

bool LiesOnDisk(int fd) {
  constexpr decltype(statfs::f_type) kTmpfsMagic = 0x01021994;  // statfs(2)
  struct statfs info;
  return ::fstatfs(fd, &info) != 0 || info.f_type != kTmpfsMagic;
}

// At an address that huge pages of the file can be mapped to.
void* MapAligned(int fd, int64_t offset, int64_t bytes, int access) {
  const auto reserved = static_cast<size_t>(bytes + kHugePage);
  void* space = ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (space == MAP_FAILED) return MAP_FAILED;
  auto* const begin = static_cast<char*>(space);
  const auto address = reinterpret_cast<uintptr_t>(space);
  char* const aligned = begin + (kHugePage - address % kHugePage) % kHugePage;
  char* const end = aligned + RoundUp(bytes, kPage);
  if (aligned > begin) ::munmap(begin, static_cast<size_t>(aligned - begin));
  if (end < begin + reserved) ::munmap(end, static_cast<size_t>(begin + reserved - end));
  void* data =
      ::mmap(aligned, static_cast<size_t>(bytes), access, MAP_SHARED | MAP_FIXED, fd, offset);
  if (data == MAP_FAILED) ::munmap(aligned, static_cast<size_t>(end - aligned));
  return data;
}

// False when they cannot be read, whose use would end the process (SIGBUS).
bool MapPages(char* data, int64_t bytes) {
  if (::madvise(data, static_cast<size_t>(bytes), MADV_POPULATE_READ) == 0) return true;
  if (errno == EFAULT || errno == EHWPOISON) return false;
  for (int64_t at = 0; at < bytes; at += kPage) {  // an older kernel
    static_cast<void>(*static_cast<const volatile char*>(data + at));
  }
  return true;
}

}  // namespace

class WeightFile::Handle {
 public:
  explicit Handle(int fd) : fd_(fd) {}
  ~Handle() {
    if (sync_.joinable()) sync_.join();
    ::close(fd_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  int fd() const { return fd_; }
  bool Lock(int operation) const {
    int result = 0;
    while ((result = ::flock(fd_, operation)) != 0 && errno == EINTR) {
    }
    return result == 0;
  }
  // Says so in the header when the data is on the disk.
  void SyncInBackground() {
    if (sync_.joinable() || !LiesOnDisk(fd_)) return;
    sync_ = std::thread([this] {
      if (::fsync(fd_) != 0 || !NoteThatSynced(fd_)) return;
      static_cast<void>(::fsync(fd_));
    });
  }

 private:
  const int fd_;
  std::thread sync_;
};

absl::StatusOr<std::unique_ptr<WeightFile>> WeightFile::Open(const fs::path& path,
                                                             const std::string& key,
                                                             const FillerProgress& on_waiting) {
  if (static_cast<int64_t>(key.size()) > kMaxWeightKeyBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the description of the weights has ",
                                                   key.size(), " bytes, the limit is ",
                                                   kMaxWeightKeyBytes));
  }
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return Unavailable(absl::StrCat("cannot open ", path.string()));
  const auto handle = std::make_shared<Handle>(fd);
  struct stat info;
  if (::fstat(fd, &info) != 0) return Unavailable(path.string());
  if (!S_ISREG(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & 022) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        path.string(), ": must be a regular file of this user that others cannot write"));
  }
  if (!MayBeWeightFile(fd)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path.string(), ": is no file of packed weights"));
  }
  std::unique_ptr<WeightFile> file(new WeightFile(handle, path, key));
  const absl::Status locked = file->Lock(on_waiting);
  if (!locked.ok()) return InFile(path, locked);
  return file;
}

absl::StatusOr<std::unique_ptr<WeightFile>> WeightFile::OpenComplete(const fs::path& path,
                                                                     const std::string& key,
                                                                     uid_t owner) {
  int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);  // to note that it has been synced
  if (fd < 0 && (errno == EACCES || errno == EROFS))
    fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Unavailable(absl::StrCat("cannot open ", path.string()));
  const auto handle = std::make_shared<Handle>(fd);
  struct stat info;
  if (::fstat(fd, &info) != 0) return Unavailable(path.string());
  const bool is_trusted = info.st_uid == ::geteuid() || info.st_uid == 0 || info.st_uid == owner;
  if (!S_ISREG(info.st_mode) || !is_trusted || (info.st_mode & 022) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path.string(),
                     ": must be a regular file of this user, root or the "
                     "checkpoint's owner that others cannot write"));
  }
  std::unique_ptr<WeightFile> file(new WeightFile(handle, path, key));
  if (!handle->Lock(LOCK_SH)) return Unavailable("flock");
  if ((file->is_complete_ = file->ReadHeader())) return file;
  return absl::FailedPreconditionError(absl::StrCat(path.string(), ": is not complete"));
}

bool WeightFile::IsComplete(const fs::path& path, const std::string& key) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const Handle handle(fd);
  return ReadWeightFileHeader(fd, key).has_value();
}

int64_t WeightFile::BytesInMemory(const fs::path& path) {
  constexpr int64_t kStatBlock = 512;  // stat(2)
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const Handle handle(fd);
  struct stat info;
  if (LiesOnDisk(fd) || ::fstat(fd, &info) != 0) return 0;
  return info.st_blocks * kStatBlock;
}

// A shared lock is given when nobody fills the file. It is asked for again and again, since a
// process that sleeps in flock would not see whether there is anything to wait for.
absl::Status WeightFile::LockShared(const FillerProgress& on_waiting) const {
  timespec changed = {};
  while (!handle_->Lock(LOCK_SH | LOCK_NB)) {
    if (errno != EWOULDBLOCK) return Unavailable("flock");
    struct stat info;
    if (::fstat(handle_->fd(), &info) != 0) return Unavailable("fstat");
    const timespec& now = info.st_mtim;
    if (now.tv_sec != changed.tv_sec || now.tv_nsec != changed.tv_nsec) {
      changed = now;
      if (on_waiting != nullptr) on_waiting();
    }
    std::this_thread::sleep_for(kLockInterval);
  }
  return absl::OkStatus();
}

// Whoever finds it unusable then tries for an exclusive one; several may, and hold each other up
// until one of them has let go.
absl::Status WeightFile::Lock(const FillerProgress& on_waiting) {
  for (int tries = 0; tries < kMaxLockTries; ++tries) {
    RETURN_IF_ERROR(LockShared(on_waiting));
    if ((is_complete_ = ReadHeader())) return absl::OkStatus();
    if (handle_->Lock(LOCK_EX | LOCK_NB)) {
      is_complete_ = ReadHeader();  // it may have been filled in between
      if (is_complete_) return handle_->Lock(LOCK_SH) ? absl::OkStatus() : Unavailable("flock");
      return ::ftruncate(handle_->fd(), 0) == 0 ? absl::OkStatus() : Unavailable("ftruncate");
    }
    handle_->Lock(LOCK_UN);
    std::this_thread::sleep_for(std::chrono::milliseconds(1 + (::getpid() + tries) % 7));
  }
  return absl::FailedPreconditionError("in use for other weights");
}

bool WeightFile::ReadHeader() {
  const auto file = ReadWeightFileHeader(handle_->fd(), key_);
  if (!file.has_value()) return false;
  file_bytes_ = file->bytes;
  digest_ = file->is_of_this_boot ? std::nullopt : file->digest;
  if (!file->is_synced) handle_->SyncInBackground();
  return true;
}

// A hole that cannot be filled later would end the process (SIGBUS), so room is made now.
absl::Status WeightFile::Reserve(int64_t offset, int64_t bytes) {
  const int fd = handle_->fd();
  const int64_t end = offset + RoundUp(bytes, kPage);
  if (::ftruncate(fd, end) != 0) return Unavailable("ftruncate");
  if (!HasLimitedSize(fd)) return absl::OkStatus();
  const int error = ::posix_fallocate(fd, offset, end - offset);
  if (error == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("no room for ", bytes, " more bytes: ", std::strerror(error)));
}

absl::StatusOr<DeviceBuffer> WeightFile::Take(int64_t bytes) {
  const int64_t offset =
      RoundUp(std::max(end_, kWeightFileHeaderBytes), bytes >= kHugePage ? kHugePage : kPage);
  if (bytes < 1 || bytes > kMaxRegionsEnd || offset > kMaxRegionsEnd) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot keep ", bytes, " bytes in a file"));
  }
  if (is_complete_ && offset + bytes > file_bytes_) {
    return absl::DataLossError(
        absl::StrCat(path_.string(), " has ", file_bytes_, " bytes, needed are ", offset + bytes));
  }
  if (!is_complete_) RETURN_IF_ERROR(Reserve(offset, bytes));
  const int access = is_complete_ ? PROT_READ : PROT_READ | PROT_WRITE;
  void* data = MapAligned(handle_->fd(), offset, bytes, access);
  if (data == MAP_FAILED) return Unavailable("mmap");
  end_ = offset + bytes;
  regions_.push_back({static_cast<char*>(data), offset, bytes});
  return DeviceBuffer(std::shared_ptr<void>(data,
                                            [bytes, handle = handle_](void* region) {
                                              ::munmap(region, static_cast<size_t>(bytes));
                                            }),
                      bytes);
}

void WeightFile::ShowProgress() const {
  using Tenths = std::chrono::duration<int64_t, std::deci>;
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  const int64_t now = std::chrono::duration_cast<Tenths>(time).count();
  if (last_shown_.exchange(now, std::memory_order_relaxed) == now) return;
  ::futimens(handle_->fd(), nullptr);  // to now
}

absl::Status WeightFile::Finish(int num_threads) {
  LS_CHECK(!is_complete_);
  for (const Region& region : regions_) {
    ::mprotect(region.data, static_cast<size_t>(region.bytes), PROT_READ);
  }
  if (LiesOnDisk(handle_->fd())) {
    WeightDigest digest;
    ForPieces(kPieceBytes, num_threads, [&](const Region& piece) {
      ShowProgress();
      digest.Add(piece.data, piece.bytes, piece.offset);
    });
    digest_ = digest.value();
  }
  std::vector<std::pair<int64_t, int64_t>> places;
  for (const Region& region : regions_) places.emplace_back(region.offset, region.bytes);
  const std::string text = WeightFileHeaderText(key_, places, digest_);
  if (static_cast<int64_t>(text.size()) > kMaxHeaderTextBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the file's header has ", text.size(),
                                                     " bytes, the limit is ", kMaxHeaderTextBytes));
  }
  const int fd = handle_->fd();
  if (::ftruncate(fd, end_) != 0) return Unavailable("ftruncate");  // where the last region ends
  if (!WriteWeightFileHeader(fd, text)) return Unavailable("cannot write the header");
  is_complete_ = true;
  file_bytes_ = end_;
  handle_->SyncInBackground();
  return handle_->Lock(LOCK_SH) ? absl::OkStatus() : Unavailable("flock");
}

void WeightFile::Discard() {
  if (!is_complete_) static_cast<void>(::ftruncate(handle_->fd(), 0));
}

// Reading needs fewer entries of page tables, and the next process maps them in no time.
void WeightFile::MakeHugePages(int num_threads) const {
  if (LiesOnDisk(handle_->fd())) return;
  ForPieces(kHugePage, num_threads, [this](const Region& piece) {
    ShowProgress();
    if (piece.bytes < kHugePage) return;
    *static_cast<volatile char*>(piece.data) = 0;  // what is empty altogether, the kernel leaves so
    ::madvise(piece.data, kHugePage, MADV_COLLAPSE);  // may be refused, which costs speed only
  });
}

absl::Status WeightFile::Populate(int num_threads, const LoadProgress& progress) const {
  std::atomic<int64_t> done{0};
  std::atomic<bool> is_unreadable{false};
  WeightDigest digest;
  ForPieces(kPieceBytes, num_threads, [&](const Region& piece) {
    ::posix_fadvise(handle_->fd(), piece.offset, piece.bytes, POSIX_FADV_WILLNEED);
    if (!MapPages(piece.data, piece.bytes)) {
      is_unreadable = true;
      return;
    }
    if (digest_.has_value()) digest.Add(piece.data, piece.bytes, piece.offset);
    const int64_t so_far = done.fetch_add(piece.bytes) + piece.bytes;
    if (progress != nullptr) progress(so_far, TotalBytes());
  });
  if (is_unreadable) return absl::DataLossError(absl::StrCat(path_.string(), " cannot be read"));
  if (!digest_.has_value()) return absl::OkStatus();
  if (digest.value() == *digest_) {
    static_cast<void>(NoteThatCompared(handle_->fd()));  // refused: the next start compares, too
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat(path_.string(), " is damaged: its weights have the digest ",
                   absl::Hex(digest.value(), absl::kZeroPad16), ", were written with ",
                   absl::Hex(*digest_, absl::kZeroPad16)));
}

void WeightFile::Remove() const {
  struct stat mine, named;
  if (::fstat(handle_->fd(), &mine) != 0 || ::stat(path_.c_str(), &named) != 0) return;
  if (mine.st_dev == named.st_dev && mine.st_ino == named.st_ino) ::unlink(path_.c_str());
}

int64_t WeightFile::TotalBytes() const {
  int64_t total = 0;
  for (const Region& region : regions_) total += region.bytes;
  return total;
}

void WeightFile::ForPieces(int64_t piece_bytes, int num_threads,
                           const std::function<void(const Region&)>& body) const {
  std::vector<Region> pieces;
  for (const Region& region : regions_) {
    for (int64_t at = 0; at < region.bytes; at += piece_bytes) {
      pieces.push_back(
          {region.data + at, region.offset + at, std::min(piece_bytes, region.bytes - at)});
    }
  }
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < pieces.size(); i = next++) body(pieces[i]);
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < num_threads; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace lockstep
