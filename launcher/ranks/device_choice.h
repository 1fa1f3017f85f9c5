// What ranks compute on: from --device to the device of a rank, alike for those who serve and those
// who measure.
#pragma once

#include <optional>
#include <string>

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

// Of this rank of the job; collective over the job. place: nothing where the job's ranks are all of
// their hosts. notice may be null. Errors as GpusFor, PlaceOnGpu and CheckSharing.
absl::StatusOr<DeviceOptions> DeviceOf(const RankFlags& flags, const MpiSession& session,
                                       std::optional<HostPlace> place = std::nullopt,
                                       const Notice& notice = nullptr);

}  // namespace lockstep
