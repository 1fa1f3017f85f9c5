// A place in a stream, for the host to wait for.
#pragma once

#include <cuda_runtime.h>

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/step_work.h"

namespace lockstep::cuda {

// Of the current device's stream, which must outlive it. Any thread may use it. RESOURCE_EXHAUSTED,
// UNAVAILABLE.
absl::StatusOr<std::unique_ptr<WorkMark>> MakeWorkMark(cudaStream_t stream);

}  // namespace lockstep::cuda
