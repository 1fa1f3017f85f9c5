// How long a collective's work takes on the device, for who chooses between two that do the same.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/kernel_stream.h"

namespace lockstep::cuda {

using IssueWork = std::function<absl::Status()>;      // alike on all ranks
using WaitForStream = std::function<absl::Status()>;  // as long as patience lasts

// Milliseconds, behind such work once more, at which ranks have waited for each other.
absl::StatusOr<float> LaunchMilliseconds(const KernelStream& stream, const IssueWork& issue,
                                         const WaitForStream& wait);
// Of ten, as part of a step: outside of a recorded one NCCL's launches take longer. The median of a
// few.
absl::StatusOr<float> RecordedMilliseconds(const KernelStream& stream, const IssueWork& issue,
                                           const WaitForStream& wait);

}  // namespace lockstep::cuda
