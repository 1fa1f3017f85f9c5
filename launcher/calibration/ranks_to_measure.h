// Which jobs a calibration measures. Pure; any thread.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/plan/host_profile.h"
#include "deploy/plan/weight_bytes.h"

namespace lockstep {

// Tensor parallel groups that compute at the same time, as stages of a pipeline do.
struct RanksAtWork {
  int tp = 1;
  int groups = 1;
  int threads = 1;  // of each rank
  bool operator==(const RanksAtWork&) const = default;
};

// For layouts of 1, 2, 4 and 8 ranks (at most twice the cores), whose ranks share the cores evenly:
// all stages of a pipeline of up to four at work, and fewer. Pure.
std::vector<RanksAtWork> RanksToMeasure(int cores);
// The same with a GPU for each rank, as far as they reach. Ranks disturb each other little, so that
// stages are measured all at work.
std::vector<RanksAtWork> RanksToMeasureOnGpus(int num_gpus, int cores);
// For this layout alone.
std::vector<RanksAtWork> RanksToMeasure(int cores, const plan::Layout& layout);
// Either of them, for the layout alone if there is one. INVALID_ARGUMENT for a layout of more ranks
// than there are GPUs.
absl::StatusOr<std::vector<RanksAtWork>> RanksToMeasure(const plan::ProfiledDevice& device,
                                                        int cores,
                                                        const std::optional<plan::Layout>& layout);

}  // namespace lockstep
