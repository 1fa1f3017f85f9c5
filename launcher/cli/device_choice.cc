#include "launcher/cli/device_choice.h"

#include <utility>

#include "kernels/base/status_macros.h"

namespace lockstep {

absl::StatusOr<std::optional<GpusHere>> GpusFor(const std::string& device) {
  if (device == "cpu") return std::nullopt;
  absl::StatusOr<GpusHere> gpus = FindGpus();
  if (device == "auto" && !gpus.ok()) return std::nullopt;
  RETURN_IF_ERROR(gpus.status());
  return *std::move(gpus);
}

DeviceOptions DeviceOf(const RankFlags& flags, const MpiSession& session) {
  using Kind = DeviceOptions::Kind;
  DeviceOptions device;
  device.kind = flags.device == "cpu"    ? Kind::kCpu
                : flags.device == "cuda" ? Kind::kCuda
                                         : Kind::kAuto;
  device.cpu = {ThreadsPerRank(flags, session.num_ranks_on_node(), session.num_cores_on_node()),
                flags.isa};
  device.rank_on_node = session.rank_on_node();
  device.num_ranks_on_node = session.num_ranks_on_node();
  device.gpu_memory_utilization = flags.gpu_memory_utilization;
  device.deterministic = flags.deterministic;
  return device;
}

}  // namespace lockstep
