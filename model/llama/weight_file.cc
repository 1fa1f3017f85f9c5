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
#include <fstream>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "model/checkpoint/safetensors_header.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPage = 4096;
constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kHeaderBytes = kHugePage;  // a hole but for its first pages
constexpr int64_t kMaxRegionsEnd = int64_t{1} << 60;
constexpr int64_t kPopulateBytes = int64_t{16} << 20;
constexpr int kMaxLockTries = 250;
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14; madvise(2)
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1
#endif

// safetensors: the number of bytes of a JSON object, the object, the tensors' bytes. The object
// begins alike in all files of ours, so that the digit of `synced` has its place.
constexpr int64_t kLengthBytes = 8;
constexpr std::string_view kBegin = R"({"__metadata__":{"format":"lockstep-packed-2","synced":")";
constexpr int64_t kSyncedOffset = kLengthBytes + static_cast<int64_t>(kBegin.size());
constexpr int64_t kMaxTextBytes = kHeaderBytes - kLengthBytes;
constexpr int64_t kMaxKeyBytes = kHeaderBytes / 2;

absl::Status Unavailable(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

bool ReadAll(int fd, int64_t offset, int64_t bytes, void* out) {
  return ::pread(fd, out, static_cast<size_t>(bytes), offset) == bytes;
}

bool WriteAll(int fd, int64_t offset, const void* data, int64_t bytes) {
  return ::pwrite(fd, data, static_cast<size_t>(bytes), offset) == bytes;
}

// In ASCII, whatever a path holds.
std::string KeyText(const std::string& key) { return absl::CHexEscape(key); }

nlohmann::ordered_json TensorJson(int64_t begin, int64_t end) {
  return {{"dtype", "U8"}, {"shape", {end - begin}}, {"data_offsets", {begin, end}}};
}

nlohmann::ordered_json TensorsJson(const std::vector<std::pair<int64_t, int64_t>>& regions,
                                   int64_t base) {
  nlohmann::ordered_json tensors;
  int64_t end = 0;
  for (size_t i = 0; i < regions.size(); ++i) {
    const int64_t begin = regions[i].first - base;
    const std::string name = absl::StrFormat("region.%05d", i);
    if (begin > end) tensors[name + ".before"] = TensorJson(end, begin);
    end = begin + regions[i].second;
    tensors[name] = TensorJson(begin, end);
  }
  return tensors;
}

// regions: (offset in the file, bytes). Tensors' offsets count from the end of the text, and have
// the more digits the shorter it is: with those of an empty one it is long enough for its own.
std::string HeaderText(const std::string& key,
                       const std::vector<std::pair<int64_t, int64_t>>& regions) {
  const nlohmann::ordered_json rest = {{"boot_id", BootId()}, {"key", KeyText(key)}};
  const std::string begin = absl::StrCat(std::string(kBegin), "0\",", rest.dump().substr(1), ",");
  const auto text = [&](int64_t length) {
    return begin + TensorsJson(regions, kLengthBytes + length).dump().substr(1);
  };
  const size_t length = text(0).size();
  std::string padded = text(static_cast<int64_t>(length));
  padded.resize(length, ' ');
  return padded;
}

// Of a file whose regions can be used; nothing when it is not that.
struct UsableFile {
  int64_t bytes = 0;
  bool is_synced = false;
};
std::optional<UsableFile> ReadHeaderOf(int fd, const std::string& key) {
  uint64_t length = 0;
  struct stat info;
  if (::fstat(fd, &info) != 0 || !ReadAll(fd, 0, kLengthBytes, &length)) return std::nullopt;
  if (length < kBegin.size() || length > kMaxTextBytes) return std::nullopt;
  std::string text(length, '\0');
  const int64_t data_begin = kLengthBytes + static_cast<int64_t>(length);
  if (!ReadAll(fd, kLengthBytes, static_cast<int64_t>(length), text.data())) return std::nullopt;
  if (text.compare(0, kBegin.size(), kBegin) != 0) return std::nullopt;
  if (!ParseSafetensorsHeader(text, data_begin, info.st_size - data_begin).ok()) {
    return std::nullopt;
  }
  const nlohmann::json metadata = nlohmann::json::parse(text)["__metadata__"];
  if (metadata.value("key", "") != KeyText(key)) return std::nullopt;
  const bool is_synced = metadata.value("synced", "") == "1";
  const std::string boot_id = BootId();
  const bool is_of_this_boot = !boot_id.empty() && metadata.value("boot_id", "") == boot_id;
  if (!is_synced && !is_of_this_boot) return std::nullopt;
  return UsableFile{info.st_size, is_synced};
}

// Another program's file must not be emptied. One of ours that was not finished begins with zeros.
bool MayBeOurs(int fd) {
  constexpr std::string_view kFormat = kBegin.substr(0, kBegin.find("-packed"));
  std::string begin(kLengthBytes + kFormat.size(), '\0');
  const ssize_t got = ::pread(fd, begin.data(), begin.size(), 0);
  if (got == 0) return true;
  return got == static_cast<ssize_t>(begin.size()) &&
         (begin.substr(kLengthBytes) == kFormat || begin == std::string(begin.size(), '\0'));
}

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

void TouchPages(const char* data, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kPage) {
    static_cast<void>(*static_cast<const volatile char*>(data + at));
  }
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
      if (::fsync(fd_) != 0 || !WriteAll(fd_, kSyncedOffset, "1", 1)) return;
      static_cast<void>(::fsync(fd_));
    });
  }

 private:
  const int fd_;
  std::thread sync_;
};

absl::StatusOr<std::unique_ptr<WeightFile>> WeightFile::Open(const fs::path& path,
                                                             const std::string& key) {
  if (static_cast<int64_t>(key.size()) > kMaxKeyBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the description of the weights has ", key.size(), " bytes, the limit is ", kMaxKeyBytes));
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
  if (!MayBeOurs(fd)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path.string(), ": is no file of packed weights"));
  }
  std::unique_ptr<WeightFile> file(new WeightFile(handle, key));
  const absl::Status locked = file->Lock();
  if (!locked.ok()) {
    return absl::Status(locked.code(), absl::StrCat(path.string(), ": ", locked.message()));
  }
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
  std::unique_ptr<WeightFile> file(new WeightFile(handle, key));
  if (!handle->Lock(LOCK_SH)) return Unavailable("flock");
  if ((file->is_complete_ = file->ReadHeader())) return file;
  return absl::FailedPreconditionError(absl::StrCat(path.string(), ": is not complete"));
}

bool WeightFile::IsComplete(const fs::path& path, const std::string& key) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const Handle handle(fd);
  return ReadHeaderOf(fd, key).has_value();
}

// A shared lock is given when nobody fills the file. Whoever finds it unusable then tries for an
// exclusive one; several may, and hold each other up until one of them has let go.
absl::Status WeightFile::Lock() {
  for (int tries = 0; tries < kMaxLockTries; ++tries) {
    if (!handle_->Lock(LOCK_SH)) return Unavailable("flock");
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
  const std::optional<UsableFile> file = ReadHeaderOf(handle_->fd(), key_);
  if (!file.has_value()) return false;
  file_bytes_ = file->bytes;
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
      RoundUp(std::max(end_, kHeaderBytes), bytes >= kHugePage ? kHugePage : kPage);
  if (bytes < 1 || bytes > kMaxRegionsEnd || offset > kMaxRegionsEnd) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot keep ", bytes, " bytes in a file"));
  }
  if (is_complete_ && offset + bytes > file_bytes_) {
    return absl::DataLossError(
        absl::StrCat("the file has ", file_bytes_, " bytes, needed are ", offset + bytes));
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

absl::Status WeightFile::Finish() {
  LS_CHECK(!is_complete_);
  for (const Region& region : regions_) {
    ::mprotect(region.data, static_cast<size_t>(region.bytes), PROT_READ);
  }
  std::vector<std::pair<int64_t, int64_t>> places;
  for (const Region& region : regions_) places.emplace_back(region.offset, region.bytes);
  const std::string text = HeaderText(key_, places);
  const auto length = static_cast<uint64_t>(text.size());
  if (length > kMaxTextBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the file's header has ", length, " bytes, the limit is ", kMaxTextBytes));
  }
  const int fd = handle_->fd();
  if (::ftruncate(fd, end_) != 0) return Unavailable("ftruncate");  // where the last region ends
  // The length last: without it the rest means nothing.
  if (!WriteAll(fd, kLengthBytes, text.data(), static_cast<int64_t>(length)) ||
      !WriteAll(fd, 0, &length, kLengthBytes)) {
    return Unavailable("cannot write the header");
  }
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
  ForPieces(kHugePage, num_threads, [](const Region& piece) {
    if (piece.bytes < kHugePage) return;
    *static_cast<volatile char*>(piece.data) = 0;  // what is empty altogether, the kernel leaves so
    ::madvise(piece.data, kHugePage, MADV_COLLAPSE);  // may be refused, which costs speed only
  });
}

void WeightFile::Populate(int num_threads, const LoadProgress& progress) const {
  std::atomic<int64_t> done{0};
  ForPieces(kPopulateBytes, num_threads, [&](const Region& piece) {
    ::posix_fadvise(handle_->fd(), piece.offset, piece.bytes, POSIX_FADV_WILLNEED);
    const auto bytes = static_cast<size_t>(piece.bytes);
    if (::madvise(piece.data, bytes, MADV_POPULATE_READ) != 0) TouchPages(piece.data, piece.bytes);
    const int64_t so_far = done.fetch_add(piece.bytes) + piece.bytes;
    if (progress != nullptr) progress(so_far, TotalBytes());
  });
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
