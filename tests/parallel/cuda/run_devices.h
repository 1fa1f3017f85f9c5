// Ranks as threads with an emulated device each.
#pragma once

#include <cuda_runtime.h>

#include <functional>

#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"
#include "parallel/communicator.h"
#include "tests/parallel/run_ranks.h"
#include "tests/support/cuda_emulation/emulation.h"

namespace lockstep::testing {

using DeviceRankMain = std::function<absl::Status(int rank, Communicator& host)>;

// A device to each, as cudaFree waits for all work of a device.
inline void RunDevices(int num_ranks, const DeviceRankMain& rank_main,
                       cuda_emulation::Device pretended = {}) {
  pretended.num_devices = num_ranks;
  cuda_emulation::SetDevice(pretended);
  RunRanks(num_ranks, /*pp=*/1, [&](int rank, RankGroups& groups) -> absl::Status {
    RETURN_IF_ERROR(cuda::CudaStatus(cudaSetDevice(rank), "choosing a device"));
    return rank_main(rank, *groups.tp);
  });
  EXPECT_EQ(cuda_emulation::TakeFailure(), "");
}

}  // namespace lockstep::testing
