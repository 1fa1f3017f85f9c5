// What ranks compute on: from --device to the device of a rank, alike for those who serve and those
// who measure.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "launcher/cli/serving_flags.h"
#include "parallel/gpu_places.h"
#include "parallel/mpi_communicator.h"
#include "runtime/worker/rank_device.h"

namespace lockstep {

using Notice = std::function<void(const std::string&)>;  // what operators may want to read

// RankFlags::device on this host: its GPUs, or nothing for its CPUs. Errors as FindGpus when GPUs
// were asked for. notice may be null.
absl::StatusOr<std::optional<GpusHere>> GpusFor(const std::string& device,
                                                const Notice& notice = nullptr);

// Of this rank of the job; collective over the job. place: nothing where the job's ranks are all of
// their hosts. Errors as GpusFor, PlaceOnGpu and CheckSharing.
absl::StatusOr<DeviceOptions> DeviceOf(const RankFlags& flags, const MpiSession& session,
                                       std::optional<HostPlace> place = std::nullopt,
                                       const Notice& notice = nullptr);

// CheckSharing of so many ranks, all there are, before any of them is started.
absl::Status CheckGpusOfThisHost(const std::vector<AcceleratorInfo>& gpus, int num_ranks,
                                 bool may_share);

}  // namespace lockstep
