#include "model/llama/weight_cache.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

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
  const ModelConfig& config = source.checkpoint.config();
  std::error_code error;
  std::string key = absl::StrCat(
      "model ", fs::canonical(source.checkpoint.directory(), error).string(), "\nconfig ",
      config.Fingerprint(source.quantize), "\nstored ", config.stored ? config.stored->json : "-",
      "\nshare ", ShapeText(source.shape), "\nkept ", static_cast<int>(source.dtype), " ",
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

absl::Status MakePrivateDirectory(const fs::path& directory) {
  std::error_code error;
  if (directory.empty() || fs::is_directory(directory, error)) return absl::OkStatus();
  RETURN_IF_ERROR(MakePrivateDirectory(directory.parent_path()));
  if (::mkdir(directory.c_str(), 0700) == 0 || errno == EEXIST) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot make ", directory.string(), ": ", std::strerror(errno)));
}

}  // namespace lockstep
