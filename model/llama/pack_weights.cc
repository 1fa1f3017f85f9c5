#include "model/llama/pack_weights.h"

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "kernels/base/status_macros.h"
#include "model/llama/stage_shape.h"
#include "model/llama/weight_cache.h"
#include "parallel/communicator.h"

namespace lockstep {
namespace {

// What a discarded file leaves of itself.
void RemoveIfEmpty(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::file_size(path, error) == 0 && !error) std::filesystem::remove(path, error);
}

}  // namespace

absl::StatusOr<PackedWeights> PackWeights(const Checkpoint& checkpoint, const ProcessGrid& grid,
                                          Backend& backend, const PackOptions& options) {
  if (backend.WeightLayout().empty()) {
    return absl::InvalidArgumentError("this device's weights cannot be kept in files");
  }
  RETURN_IF_ERROR(checkpoint.config().HeldAs(options.quantize).status());
  PackedWeights packed;
  packed.directory = PackedDirectory(checkpoint);
  RETURN_IF_ERROR(MakePrivateDirectory(packed.directory));
  const std::vector<RankGroups> groups = MakeInProcessGroups(grid);
  int64_t bytes_read = 0;  // by the ranks before
  for (int rank = 0; rank < grid.world_size(); ++rank) {
    ASSIGN_OR_RETURN(const StageShape shape, MakeStageShape(checkpoint.config(), grid, rank));
    const LoadProgress progress = [&](int64_t done, int64_t total) {
      if (options.progress == nullptr) return;
      // Those to come are as large as this one, as far as is known.
      options.progress(bytes_read + done, bytes_read + total * (grid.world_size() - rank));
    };
    const WeightSource source = {.checkpoint = checkpoint,
                                 .shape = shape,
                                 .dtype = options.dtype,
                                 .quantize = options.quantize,
                                 .num_threads = options.num_threads,
                                 .progress = progress,
                                 .cache = packed.directory,
                                 .on_notice = nullptr,
                                 .on_waiting = options.on_waiting};
    ASSIGN_OR_RETURN(const std::string key, WeightKey(source, backend));
    const std::filesystem::path path = PackedPath(source, key);
    LoadStats stats;
    const absl::Status loaded =
        LoadIntoCache(source, backend, *groups[static_cast<size_t>(rank)].tp, stats).status();
    if (!loaded.ok()) {
      RemoveIfEmpty(path);
      return loaded;
    }
    ShareWithReaders(checkpoint, path);
    bytes_read += stats.loaded_bytes;
    packed.bytes += stats.weight_bytes;
    packed.bytes_before += stats.mapped_bytes;
  }
  return packed;
}

}  // namespace lockstep
