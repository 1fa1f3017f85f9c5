// How long a collective's work takes on the device, for who chooses between two that do the same.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/kernel_stream.h"
#include "parallel/communicator.h"

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
// Whether `one` takes less time than `other`, over all ranks of `host`: everybody gets the same
// sums of times, hence the same answer.
absl::StatusOr<bool> IsFaster(Communicator& host, const KernelStream& stream,
                              const WaitForStream& wait, const IssueWork& one,
                              const IssueWork& other);

}  // namespace lockstep::cuda
