#include "kernels/cuda/kv_offload.h"

#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/kernels.h"

namespace lockstep::cuda {

absl::StatusOr<std::unique_ptr<KvOffload>> KvOffload::Create(cudaStream_t stream) {
  std::unique_ptr<KvOffload> offload(new KvOffload(stream));
  RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(&offload->copies_, cudaStreamNonBlocking),
                             "a stream of copies to the host"));
  for (cudaEvent_t* event : {&offload->computed_, &offload->offloaded_}) {
    RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(event, cudaEventDisableTiming),
                               "an event of copies to the host"));
  }
  return offload;
}

KvOffload::~KvOffload() {
  if (copies_ != nullptr) cudaStreamSynchronize(copies_);
  for (const cudaEvent_t event : {computed_, offloaded_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  if (copies_ != nullptr) cudaStreamDestroy(copies_);
}

void KvOffload::Start(const KvBlockCopies& copies) {
  if (copies.copies.empty()) return;
  constexpr char kWhat[] = "offloading blocks of a KV cache";
  CudaCheck(cudaEventRecord(computed_, stream_), kWhat);
  CudaCheck(cudaStreamWaitEvent(copies_, computed_), kWhat);
  CudaCheck(LaunchOffloadKv(copies, kThreadBlocks, copies_), kWhat);
  CudaCheck(cudaEventRecord(offloaded_, copies_), kWhat);
  is_awaited_ = false;
}

void KvOffload::Await() {
  if (is_awaited_) return;
  CudaCheck(cudaStreamWaitEvent(stream_, offloaded_),
            "waiting for blocks on their way to the host");
  is_awaited_ = true;
}

void KvOffload::Synchronize() {
  CudaCheck(cudaStreamSynchronize(copies_), "waiting for blocks on their way to the host");
}

}  // namespace lockstep::cuda
