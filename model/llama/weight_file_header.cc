#include "model/llama/weight_file_header.h"

#include <sys/stat.h>
#include <unistd.h>

#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/boot_id.h"
#include "model/checkpoint/safetensors_header.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

// safetensors: the number of bytes of a JSON object, the object, the tensors' bytes. The object
// begins alike in all files of ours, so that the digit of `synced` has its place.
constexpr int64_t kLengthBytes = 8;
constexpr std::string_view kBegin = R"({"__metadata__":{"format":"lockstep-packed-3","synced":")";
constexpr int64_t kSyncedOffset = kLengthBytes + static_cast<int64_t>(kBegin.size());
constexpr std::string_view kBeforeBoot = R"(0","boot_id":")";  // or 1, if it is synced
constexpr int64_t kBootOffset = kSyncedOffset + static_cast<int64_t>(kBeforeBoot.size());
static_assert(kMaxHeaderTextBytes == kWeightFileHeaderBytes - kLengthBytes);

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

}  // namespace

// Tensors' offsets count from the end of the text, and have
// the more digits the shorter it is: with those of an empty one it is long enough for its own.
std::string WeightFileHeaderText(const std::string& key,
                                 const std::vector<std::pair<int64_t, int64_t>>& regions,
                                 std::optional<uint64_t> digest) {
  const nlohmann::ordered_json rest = {
      {"boot_id", BootId()},
      {"digest", digest.has_value() ? absl::StrFormat("%016x", *digest) : ""},
      {"key", KeyText(key)}};
  const std::string begin = absl::StrCat(std::string(kBegin), "0\",", rest.dump().substr(1), ",");
  const auto text = [&](int64_t length) {
    return begin + TensorsJson(regions, kLengthBytes + length).dump().substr(1);
  };
  const size_t length = text(0).size();
  std::string padded = text(static_cast<int64_t>(length));
  padded.resize(length, ' ');
  return padded;
}

// The length last: without it the rest means nothing.
bool WriteWeightFileHeader(int fd, const std::string& text) {
  const auto length = static_cast<uint64_t>(text.size());
  return WriteAll(fd, kLengthBytes, text.data(), static_cast<int64_t>(length)) &&
         WriteAll(fd, 0, &length, kLengthBytes);
}

// The place is that of another boot's.
bool NoteThatCompared(int fd) {
  const std::string boot_id = BootId();
  std::string old(boot_id.size() + 1, '\0');
  const auto length = static_cast<int64_t>(old.size());
  if (boot_id.empty() || !ReadAll(fd, kBootOffset, length, old.data()) || old.back() != '"') {
    return false;
  }
  return WriteAll(fd, kBootOffset, boot_id.data(), length - 1);
}

bool NoteThatSynced(int fd) { return WriteAll(fd, kSyncedOffset, "1", 1); }

std::optional<UsableWeightFile> ReadWeightFileHeader(int fd, const std::string& key) {
  uint64_t length = 0;
  struct stat info;
  if (::fstat(fd, &info) != 0 || !ReadAll(fd, 0, kLengthBytes, &length)) return std::nullopt;
  if (length < kBegin.size() || length > static_cast<uint64_t>(kMaxHeaderTextBytes))
    return std::nullopt;
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
  UsableWeightFile file{.bytes = info.st_size,
                        .is_synced = is_synced,
                        .is_of_this_boot = is_of_this_boot,
                        .digest = std::nullopt};
  uint64_t digest = 0;
  if (absl::SimpleHexAtoi(metadata.value("digest", ""), &digest)) file.digest = digest;
  return file;
}

bool MayBeWeightFile(int fd) {
  constexpr std::string_view kFormat = kBegin.substr(0, kBegin.find("-packed"));
  std::string begin(kLengthBytes + kFormat.size(), '\0');
  const ssize_t got = ::pread(fd, begin.data(), begin.size(), 0);
  if (got == 0) return true;
  return got == static_cast<ssize_t>(begin.size()) &&
         (begin.substr(kLengthBytes) == kFormat || begin == std::string(begin.size(), '\0'));
}

}  // namespace lockstep
