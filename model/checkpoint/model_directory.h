// Writing a model's directory: complete or not at all.
//
// Any thread; an OutputFile may be written by several.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/checkpoint/shard_plan.h"

namespace lockstep {

// One output file, closed on destruction. Errors: RESOURCE_EXHAUSTED (the disk is full),
// UNAVAILABLE.
class OutputFile {
 public:
  static absl::StatusOr<std::unique_ptr<OutputFile>> Create(const std::filesystem::path& path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  absl::Status WriteAt(int64_t offset, const void* data, int64_t num_bytes);
  // Some file systems report a full disk only here.
  absl::Status Close();

 private:
  OutputFile(std::filesystem::path path, int fd) : path_(std::move(path)), fd_(fd) {}
  const std::filesystem::path path_;
  int fd_;
  std::mutex mutex_;
};

// A directory that disappears with everything in it unless it is moved to its final name.
class TemporaryDirectory {
 public:
  // A new one, whatever others have left there: OUTPUT.partial-PID, or with a number behind it
  // (containers give the same process ids again).
  static absl::StatusOr<std::unique_ptr<TemporaryDirectory>> CreateBeside(
      const std::filesystem::path& output);
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // When all in it is on disk, so that a crash leaves the whole model or none. An empty directory
  // of that name is replaced.
  absl::Status MoveTo(const std::filesystem::path& output);

 private:
  explicit TemporaryDirectory(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
};

// The directory's name without a trailing slash, so that a suffix can be added. Whatever would keep
// TemporaryDirectory::MoveTo from that name at the end of the work: INVALID_ARGUMENT without a name
// of its own ("", ".", "..") or for a mount point, ALREADY_EXISTS unless it is new or empty, or for
// a link; UNAVAILABLE where it cannot be looked at.
absl::StatusOr<std::filesystem::path> CheckedOutput(const std::filesystem::path& output);
// RESOURCE_EXHAUSTED with the numbers. directory: the temporary one.
absl::Status CheckDiskSpace(const std::filesystem::path& directory, int64_t needed_bytes);
absl::Status WriteText(const std::filesystem::path& path, const std::string& text);
// The planned files with their headers, and the index that several need.
absl::StatusOr<std::vector<std::unique_ptr<OutputFile>>> CreatePlannedFiles(
    const std::filesystem::path& directory, const std::vector<PlannedFile>& plan);

}  // namespace lockstep
