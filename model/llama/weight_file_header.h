// The header of a file of packed weights: that of a safetensors file, with what the weights are,
// and whether they can be relied on after a crash.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

// Before the first region; a hole but for its first pages. A huge page, so that regions can be
// mapped by such.
constexpr int64_t kWeightFileHeaderBytes = int64_t{2} << 20;
constexpr int64_t kMaxHeaderTextBytes = kWeightFileHeaderBytes - 8;
constexpr int64_t kMaxWeightKeyBytes = kWeightFileHeaderBytes / 2;

// regions: (offset in the file, bytes), ascending. digest: of all of them (WeightFile::Digest).
std::string WeightFileHeaderText(const std::string& key,
                                 const std::vector<std::pair<int64_t, int64_t>>& regions,
                                 std::optional<uint64_t> digest);
// Of at most kMaxHeaderTextBytes. False with errno when it cannot be written.
bool WriteWeightFileHeader(int fd, const std::string& text);
// In the header: the regions are on the disk. False with errno.
bool NoteThatSynced(int fd);
// In the header: they were found to be what was written, in this boot. False when that cannot be
// noted.
bool NoteThatCompared(int fd);

// Of a file whose regions can be used; nothing when it is not that: of another key, not finished,
// or perhaps not on the disk when the machine went down.
struct UsableWeightFile {
  int64_t bytes = 0;
  bool is_synced = false;
  bool is_of_this_boot = false;  // written, or compared
  std::optional<uint64_t> digest;
};
std::optional<UsableWeightFile> ReadWeightFileHeader(int fd, const std::string& key);

// Another program's file must not be emptied. One of ours that was not finished begins with zeros.
bool MayBeWeightFile(int fd);

}  // namespace lockstep
