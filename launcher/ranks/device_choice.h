// What ranks compute on: from --device to the device of a rank, alike for those who serve and those
// who measure.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/notice.h"
#include "launcher/cli/serving_flags.h"
#include "parallel/gpu_places.h"
#include "parallel/mpi_communicator.h"
#include "runtime/worker/rank_device.h"

namespace lockstep {

struct DeviceSearch {
  std::optional<GpusHere> gpus;  // nothing: the CPUs
  absl::Status why_none;         // FindGpus's error; OK where nobody has looked for them

  // That GPUs are left alone, and why. Empty where nobody expects them: without a driver.
  std::string LeftAlone() const;
};
// RankFlags::device on this host. Errors as FindGpus when GPUs were asked for.
absl::StatusOr<DeviceSearch> GpusFor(const std::string& device);

// The memory nodes of the GPUs of the ranks on this host, by place; -1: no GPU, or not known.
// ranks: of the job, of which `rank` is one on this host. Ranks of other jobs are taken to see its
// GPUs. Errors as PlaceOnGpu.
absl::StatusOr<std::vector<int>> GpuNodes(std::span<const RankGpus> ranks, int rank,
                                          const std::filesystem::path& sysfs);

// Of this rank of the job; collective over the job. The threads that it starts from now on keep to
// cores of their own near its GPU, but for RankFlags::shares_cores. place: nothing where the job's
// ranks are all of their hosts. notice may be null. Errors as GpusFor, PlaceOnGpu and CheckSharing.
absl::StatusOr<DeviceOptions> TakeDevice(const RankFlags& flags, const MpiSession& session,
                                         std::optional<HostPlace> place = std::nullopt,
                                         const Notice& notice = nullptr);

}  // namespace lockstep
