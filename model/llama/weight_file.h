// Packed weights in a file that later starts and other ranks of the same share map instead of
// packing their own.
//
// The file is safetensors' (https://huggingface.co/docs/safetensors), though nobody but this
// backend can make sense of the bytes: tensors "region.N" of U8 in the order in which they were
// taken, each on pages of its own from the third MiB on ("region.N.before" is the room between),
// and metadata: format, key (what the weights are of and how they are packed, in text), boot_id,
// synced ("1": on the disk), digest (of the regions, of a file on a disk). Within a region bytes
// lie as Backend::WeightLayout says. Who fills it holds an exclusive lock, who uses it a shared
// one, so that a second rank waits for the first, whose progress shows in the time of the last
// change; locks end with their process. A file that was not finished, is of other weights, or may
// have lost pages in a crash of the machine (written in another boot and never synced) is filled
// anew. What a disk gives back is compared with its
// digest, once in a boot.
//
// Used by one thread, but for Populate's own.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace lockstep {

// Called from loader threads, concurrently.
using LoadProgress = std::function<void(int64_t bytes_done, int64_t bytes_total)>;
// Called when a file is found being filled by another process, and whenever that has come further.
using FillerProgress = std::function<void()>;

class WeightFile {
 public:
  // Opens or makes the file (mode 0600) and waits while another process fills it. key: text that
  // differs where the packed bytes may. on_waiting may be null. FAILED_PRECONDITION when others may
  // write the file, it is in use for other weights or not a file of weights, UNAVAILABLE with
  // errno's text.
  static absl::StatusOr<std::unique_ptr<WeightFile>> Open(
      const std::filesystem::path& path, const std::string& key,
      const FillerProgress& on_waiting = nullptr);
  // Opens a complete file, which may be another user's: this one's, root's or `owner`'s. Writes
  // nothing where the file may not be written. FAILED_PRECONDITION when it is somebody else's,
  // others may write it or it is not complete, UNAVAILABLE with errno's text.
  static absl::StatusOr<std::unique_ptr<WeightFile>> OpenComplete(const std::filesystem::path& path,
                                                                  const std::string& key,
                                                                  uid_t owner);
  // Whether the file is complete and of this key, as it stands.
  static bool IsComplete(const std::filesystem::path& path, const std::string& key);
  // That the file takes by now; 0 when it lies on a disk (then they can be dropped) or is not
  // there.
  static int64_t BytesInMemory(const std::filesystem::path& path);

  // The regions hold weights already: read-only. Else they are zero and wait to be filled.
  bool is_complete() const { return is_complete_; }
  // The next region, in the same order and of the same sizes in every process. It stays mapped as
  // long as it is kept, and the lock as long as any is. RESOURCE_EXHAUSTED when the file system is
  // full, DATA_LOSS when a complete file ends before the region does.
  absl::StatusOr<DeviceBuffer> Take(int64_t bytes);
  // The regions are being filled: tells who waits for them, at most ten times a second. Any thread.
  void ShowProgress() const;
  // All regions are filled: others may use them, nobody may write them. What lies on a disk is
  // synced in the background.
  absl::Status Finish(int num_threads);
  // Instead of Finish, when they will not be filled: gives their room back. No region may be used
  // after it.
  void Discard();
  // Before the regions are filled: lays what is kept in memory on huge pages.
  void MakeHugePages(int num_threads) const;
  // Maps the pages of all regions, reading what is not in memory. DATA_LOSS when they cannot be
  // read, or are not what was written.
  absl::Status Populate(int num_threads, const LoadProgress& progress) const;
  // Of a damaged one: that nobody opens it again. Whoever has done so keeps what is mapped.
  void Remove() const;

 private:
  class Handle;  // descriptor, lock and background sync, shared with the regions
  struct Region {
    char* data;
    int64_t offset;
    int64_t bytes;
  };

  WeightFile(std::shared_ptr<Handle> handle, std::filesystem::path path, std::string key)
      : handle_(std::move(handle)), path_(std::move(path)), key_(std::move(key)) {}
  absl::Status Lock(const FillerProgress& on_waiting);
  absl::Status LockShared(const FillerProgress& on_waiting) const;
  bool ReadHeader();
  absl::Status Reserve(int64_t offset, int64_t bytes);
  int64_t TotalBytes() const;
  void ForPieces(int64_t piece_bytes, int num_threads,
                 const std::function<void(const Region&)>& body) const;

  std::shared_ptr<Handle> handle_;
  const std::filesystem::path path_;
  std::string key_;
  bool is_complete_ = false;
  int64_t file_bytes_ = 0;          // of a complete file
  std::optional<uint64_t> digest_;  // to be compared, or told
  int64_t end_ = 0;                 // of the regions so far
  std::vector<Region> regions_;
  mutable std::atomic<int64_t> last_shown_{0};  // in tenths of a second of steady_clock
};

// While it lives, the backend's allocations lie in the file, if there is one.
class PlacedInFile {
 public:
  PlacedInFile(Backend& backend, WeightFile* file)
      : backend_(backend), is_placed_(file != nullptr) {
    if (is_placed_) backend_.PlaceWeights([file](int64_t bytes) { return file->Take(bytes); });
  }
  ~PlacedInFile() {
    if (is_placed_) backend_.PlaceWeights(nullptr);
  }
  PlacedInFile(const PlacedInFile&) = delete;
  PlacedInFile& operator=(const PlacedInFile&) = delete;

 private:
  Backend& backend_;
  const bool is_placed_;
};

}  // namespace lockstep
