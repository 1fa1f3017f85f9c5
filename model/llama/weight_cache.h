// Which file keeps a rank's packed weights.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/llama/weight_file.h"
#include "model/llama/weights.h"

namespace lockstep {

// Everything that the packed bytes depend on, as text: the checkpoint's files with their sizes and
// times, its fingerprint (copies may keep times), the rank's share, how it is kept, and the
// backend's layout. UNAVAILABLE when a file of the checkpoint cannot be looked at.
absl::StatusOr<std::string> WeightKey(const WeightSource& source, const Backend& backend);

// source.cache: a directory (made if need be) that holds a file per key, or the file itself.
std::filesystem::path WeightPath(const WeightSource& source, const std::string& key);

// Beside the checkpoint: where they lie that were packed ahead (PackWeights).
std::filesystem::path PackedDirectory(const Checkpoint& checkpoint);
std::filesystem::path PackedPath(const WeightSource& source, const std::string& key);

// User that may replace the model and whose packed weights are taken for it.
uid_t OwnerOf(const Checkpoint& checkpoint);

// Lets those who may read the checkpoint read what was packed of it: adds its read permissions, and
// its group, to the directory and the file. As far as the system allows; nobody else may write.
void ShareWithReaders(const Checkpoint& checkpoint, const std::filesystem::path& packed_file);

// Whether a rank's weights are kept in a file.
bool UsesCache(const WeightSource& source, const Backend& backend);
// The file, whether it is filled or not: packed ahead, unless that is damaged, else the cache's.
// on_notice is told when the first is there and cannot be used. Errors of WeightFile::Open.
struct OpenedWeights {
  std::unique_ptr<WeightFile> file;
  bool is_packed_ahead = false;
};
absl::StatusOr<OpenedWeights> OpenWeightFile(const WeightSource& source, const Backend& backend,
                                             bool packed_is_damaged);

// How much memory LoadStageWeights would take for so many bytes of weights: none where the cache
// has them, less what another process that packs them has packed by now of a file in memory.
int64_t WeightBytesToCome(const WeightSource& source, const Backend& backend, int64_t weight_bytes);

// With mode 0700, when it is not there. UNAVAILABLE with errno's text.
absl::Status MakePrivateDirectory(const std::filesystem::path& directory);

}  // namespace lockstep
