#include "parallel/cuda/nccl_barrier.h"

#include <nccl.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"

namespace lockstep::cuda {

absl::StatusOr<std::unique_ptr<NcclBarrier>> NcclBarrier::Create(
    NcclGroup& group, const KernelStream& stream, std::chrono::milliseconds patience) {
  std::unique_ptr<NcclBarrier> barrier(new NcclBarrier(group, stream, patience));
  ASSIGN_OR_RETURN(barrier->token_, AllocateOnDevice<float>(1, "memory of a barrier"));
  RETURN_IF_ERROR(CudaStatus(cudaMemsetAsync(barrier->token_.get(), 0, sizeof(float), stream),
                             "memory of a barrier"));
  RETURN_IF_ERROR(
      CudaStatus(cudaEventCreateWithFlags(&barrier->arrived_, cudaEventDisableTiming), "an event"));
  return barrier;
}

NcclBarrier::~NcclBarrier() {
  if (arrived_ != nullptr) cudaEventDestroy(arrived_);
}

absl::Status NcclBarrier::Meet(std::chrono::milliseconds patience) {
  using std::chrono::steady_clock;
  const absl::Status launched =
      group_.Launch({"all-reduce", sizeof(float)}, launch_patience_, [&](ncclComm_t comm) {
        return ncclAllReduce(token_.get(), token_.get(), 1, ncclFloat32, ncclSum, comm, stream_);
      });
  stream_.HoldNext();
  RETURN_IF_ERROR(launched);
  RETURN_IF_ERROR(CudaStatus(cudaEventRecord(arrived_, stream_), "a barrier"));
  const auto deadline = steady_clock::now() + patience;
  cudaError_t reached = cudaEventQuery(arrived_);
  while (reached == cudaErrorNotReady) {
    RETURN_IF_ERROR(group_.Health());
    if (steady_clock::now() > deadline) {
      group_.End(absl::StrCat("a barrier was not reached by all within ", patience.count(), " ms",
                              advice_));
      return group_.Health();
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    reached = cudaEventQuery(arrived_);
  }
  RETURN_IF_ERROR(CudaStatus(reached, "a barrier"));
  return group_.Health();
}

}  // namespace lockstep::cuda
