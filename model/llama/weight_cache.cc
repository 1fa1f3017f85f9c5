#include "model/llama/weight_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "model/stable_hash.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::string RangeText(Range range) { return absl::StrCat(range.begin, "-", range.end); }

std::string ShapeText(const StageShape& shape) {
  return absl::StrCat("layers ", RangeText(shape.layers), " heads ", RangeText(shape.query_heads),
                      " kv_heads ", RangeText(shape.kv_heads), " intermediate ",
                      RangeText(shape.intermediate), " vocab ", RangeText(shape.vocab),
                      " k_slices ", shape.attention_k_slices, " ", shape.mlp_k_slices,
                      shape.is_first ? " first" : "", shape.is_last ? " last" : "");
}

absl::StatusOr<std::string> FileText(const fs::path& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) {
    return absl::UnavailableError(absl::StrCat(path.string(), ": ", std::strerror(errno)));
  }
  return absl::StrFormat("%s %d bytes, written %d.%09d", path.filename().string(), info.st_size,
                         info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
}

}  // namespace

absl::StatusOr<std::string> WeightKey(const WeightSource& source, const Backend& backend) {
  const std::optional<StoredQuantization>& stored = source.checkpoint.config().stored;
  ASSIGN_OR_RETURN(const std::string fingerprint, source.checkpoint.Fingerprint(source.quantize));
  std::error_code error;
  std::string key = absl::StrCat(
      "model ", fs::canonical(source.checkpoint.directory(), error).string(), "\nfingerprint ",
      fingerprint, "\nstored ", stored ? stored->json : "-", "\nshare ", ShapeText(source.shape),
      "\nkept ", static_cast<int>(source.dtype), " ",
      std::string(QuantizationName(source.quantize)), "\nlayout ", backend.WeightLayout());
  for (const auto& file : source.checkpoint.files()) {
    ASSIGN_OR_RETURN(const std::string text, FileText(file->path()));
    absl::StrAppend(&key, "\nfile ", text);
  }
  return key;
}

namespace {

std::string NameOf(const WeightSource& source, const std::string& key) {
  std::error_code error;
  const fs::path model = fs::canonical(source.checkpoint.directory(), error);
  return absl::StrFormat("%s-%016x.safetensors", model.filename().string(), Fnv1a64(key));
}

}  // namespace

fs::path WeightPath(const WeightSource& source, const std::string& key) {
  std::error_code error;
  if (fs::exists(source.cache, error) && !fs::is_directory(source.cache, error)) {
    return source.cache;
  }
  return source.cache / NameOf(source, key);
}

fs::path PackedDirectory(const Checkpoint& checkpoint) { return checkpoint.directory() / "packed"; }

fs::path PackedPath(const WeightSource& source, const std::string& key) {
  return PackedDirectory(source.checkpoint) / NameOf(source, key);
}

uid_t OwnerOf(const Checkpoint& checkpoint) {
  struct stat info;
  return ::stat(checkpoint.directory().c_str(), &info) == 0 ? info.st_uid : ::geteuid();
}

namespace {

constexpr mode_t kGroupBits = 070;

// Permissions that the group and others have in common.
struct Readers {
  mode_t mode = 0555;
  std::optional<gid_t> group;
};

void Narrow(const fs::path& path, Readers& readers) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) {
    readers.mode = 0;
    return;
  }
  readers.mode &= info.st_mode;
  if (readers.group.value_or(info.st_gid) != info.st_gid) readers.mode &= ~kGroupBits;
  readers.group = info.st_gid;
}

void Share(const fs::path& path, Readers readers) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return;
  const gid_t group = readers.group.value_or(info.st_gid);
  if (info.st_gid != group &&
      ((info.st_mode & kGroupBits) != 0 || ::chown(path.c_str(), uid_t(-1), group) != 0)) {
    readers.mode &= ~kGroupBits;  // they would be another group's
  }
  static_cast<void>(::chmod(path.c_str(), (info.st_mode & 07777) | readers.mode));
}

}  // namespace

void ShareWithReaders(const Checkpoint& checkpoint, const fs::path& packed_file) {
  Readers of_directory;
  Narrow(checkpoint.directory(), of_directory);
  Share(packed_file.parent_path(), of_directory);
  Readers of_files;
  of_files.mode = 0444;
  for (const auto& file : checkpoint.files()) Narrow(file->path(), of_files);
  Share(packed_file, of_files);
}

absl::Status MakePrivateDirectory(const fs::path& directory) {
  std::error_code error;
  if (directory.empty() || fs::is_directory(directory, error)) return absl::OkStatus();
  RETURN_IF_ERROR(MakePrivateDirectory(directory.parent_path()));
  if (::mkdir(directory.c_str(), 0700) == 0 || errno == EEXIST) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot make ", directory.string(), ": ", std::strerror(errno)));
}

bool UsesCache(const WeightSource& source, const Backend& backend) {
  return !source.cache.empty() && !backend.WeightLayout().empty();
}

int64_t WeightBytesToCome(const WeightSource& source, const Backend& backend,
                          int64_t weight_bytes) {
  if (!UsesCache(source, backend)) return weight_bytes;
  const absl::StatusOr<std::string> key = WeightKey(source, backend);
  if (!key.ok()) return weight_bytes;
  const std::filesystem::path path = WeightPath(source, *key);
  if (WeightFile::IsComplete(PackedPath(source, *key), *key) ||
      WeightFile::IsComplete(path, *key)) {
    return 0;
  }
  return std::max<int64_t>(0, weight_bytes - WeightFile::BytesInMemory(path));
}

absl::StatusOr<OpenedWeights> OpenWeightFile(const WeightSource& source, const Backend& backend,
                                             bool packed_is_damaged) {
  ASSIGN_OR_RETURN(const std::string key, WeightKey(source, backend));
  const std::filesystem::path packed = PackedPath(source, key);
  const auto notice = [&](const std::string& text) {
    if (source.on_notice != nullptr) source.on_notice(text);
  };
  if (packed_is_damaged) {
    // told by whoever has found it so
  } else if (WeightFile::IsComplete(packed, key)) {
    auto file = WeightFile::OpenComplete(packed, key, OwnerOf(source.checkpoint));
    if (file.ok()) return OpenedWeights{*std::move(file), /*is_packed_ahead=*/true};
    notice(std::string(file.status().message()));
  } else if (::faccessat(AT_FDCWD, packed.c_str(), R_OK, AT_EACCESS) != 0 && errno == EACCES) {
    notice(absl::StrCat("weights packed ahead may not be read: ", packed.string(), ": ",
                        std::strerror(EACCES)));
  }
  const std::filesystem::path path = WeightPath(source, key);
  RETURN_IF_ERROR(MakePrivateDirectory(path.parent_path()));
  ASSIGN_OR_RETURN(auto file, WeightFile::Open(path, key, source.on_waiting));
  return OpenedWeights{std::move(file)};
}

}  // namespace lockstep
