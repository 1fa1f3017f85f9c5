#include "parallel/cuda/nccl_exchange.h"

#include <nccl.h>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"

namespace lockstep::cuda {

absl::Status LaunchExchange(NcclGroup& group, const ExchangedParts& parts,
                            std::chrono::milliseconds patience, cudaStream_t stream) {
  if (parts.bytes == 0) return group.Health();
  const auto bytes = static_cast<size_t>(parts.bytes);
  if (parts.with_own) {
    RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(parts.to + group.rank() * parts.to_stride,
                                               parts.from + group.rank() * parts.from_stride, bytes,
                                               cudaMemcpyDeviceToDevice, stream),
                               "an exchange"));
  }
  return group.Launch({"exchange", parts.bytes}, patience, [&](ncclComm_t comm) {
    ncclResult_t result = ncclGroupStart();
    for (int distance = 1; distance < group.size() && result == ncclSuccess; ++distance) {
      const int to = (group.rank() + distance) % group.size();
      const int from = (group.rank() + group.size() - distance) % group.size();
      result = ncclSend(parts.from + to * parts.from_stride, bytes, ncclInt8, to, comm, stream);
      if (result != ncclSuccess) break;
      result = ncclRecv(parts.to + from * parts.to_stride, bytes, ncclInt8, from, comm, stream);
    }
    const ncclResult_t ended = ncclGroupEnd();
    return result != ncclSuccess ? result : ended;
  });
}

}  // namespace lockstep::cuda
