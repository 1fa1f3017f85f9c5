// Which GPUs there are, and which of them run this program's kernels.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/accelerator.h"

namespace lockstep::cuda {

// Why no driver whatever runs the kernels on such a GPU: it is older than what they are compiled
// for. Empty: it is not.
std::string WhyTooOld(const cudaDeviceProp& properties);

// Of the current device, which has these properties: FAILED_PRECONDITION where it cannot run the
// kernels, as the driver says, which on a GPU newer than they are has to compile them.
absl::Status CheckKernelsRun(const cudaDeviceProp& properties);

// Those that the driver shows this process. UNAVAILABLE, saying why, where it shows none.
absl::StatusOr<std::vector<AcceleratorInfo>> ListDevices();

}  // namespace lockstep::cuda
