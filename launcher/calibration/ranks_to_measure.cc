#include "launcher/calibration/ranks_to_measure.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

constexpr int kMostRanks = 8;
constexpr int kMostStages = 4;

}  // namespace

std::vector<RanksAtWork> RanksToMeasure(int cores) {
  std::vector<RanksAtWork> cases;
  for (int world = 1; world <= std::min(kMostRanks, 2 * cores); world *= 2) {
    const int threads = std::max(1, cores / world);
    for (int stages = 1; stages <= std::min(world, kMostStages); stages *= 2) {
      for (int active = 1; active <= stages; active *= 2) {
        const RanksAtWork at_work{world / stages, active, threads};
        if (std::find(cases.begin(), cases.end(), at_work) == cases.end()) cases.push_back(at_work);
      }
    }
  }
  return cases;
}

std::vector<RanksAtWork> RanksToMeasureOnGpus(int num_gpus, int cores) {
  std::vector<RanksAtWork> cases;
  for (int world = 1; world <= std::min(kMostRanks, num_gpus); world *= 2) {
    for (int stages = 1; stages <= std::min(world, kMostStages); stages *= 2) {
      cases.push_back({world / stages, stages, std::max(1, cores / world)});
    }
  }
  return cases;
}

std::vector<RanksAtWork> RanksToMeasure(int cores, const plan::Layout& layout) {
  std::vector<RanksAtWork> cases;
  for (int active = 1; active <= layout.pp; ++active) {
    cases.push_back({layout.tp, active, std::max(1, cores / layout.ranks())});
  }
  return cases;
}

absl::StatusOr<std::vector<RanksAtWork>> RanksToMeasure(const plan::ProfiledDevice& device,
                                                        int cores,
                                                        const std::optional<plan::Layout>& layout) {
  if (!layout) {
    return device.is_gpu() ? RanksToMeasureOnGpus(device.count, cores) : RanksToMeasure(cores);
  }
  if (device.is_gpu() && layout->ranks() > device.count) {
    return absl::InvalidArgumentError(absl::StrCat("tp ", layout->tp, " x pp ", layout->pp,
                                                   " needs ", layout->ranks(), " GPUs; there are ",
                                                   device.count));
  }
  return RanksToMeasure(cores, *layout);
}

}  // namespace lockstep
