// What ranks compute on: from --device to the device of a rank, alike for those who serve and those
// who measure.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "launcher/cli/serving_flags.h"
#include "parallel/mpi_communicator.h"
#include "runtime/worker/rank_device.h"

namespace lockstep {

// RankFlags::device on this host: its GPUs, or nothing for its CPUs. Errors as FindGpus when GPUs
// were asked for.
absl::StatusOr<std::optional<GpusHere>> GpusFor(const std::string& device);

// Of this rank of the job.
DeviceOptions DeviceOf(const RankFlags& flags, const MpiSession& session);

}  // namespace lockstep
