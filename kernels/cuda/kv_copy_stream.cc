#include "kernels/cuda/kv_copy_stream.h"

#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"

namespace lockstep::cuda {

absl::StatusOr<std::unique_ptr<KvCopyStream>> KvCopyStream::Create(cudaStream_t stream,
                                                                   Launch* launch) {
  std::unique_ptr<KvCopyStream> made(new KvCopyStream(stream, launch));
  RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(&made->copies_, cudaStreamNonBlocking),
                             "a stream of copies between GPU and host"));
  for (cudaEvent_t* event : {&made->issued_, &made->copied_}) {
    RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(event, cudaEventDisableTiming),
                               "an event of copies between GPU and host"));
  }
  return made;
}

KvCopyStream::~KvCopyStream() {
  if (copies_ != nullptr) cudaStreamSynchronize(copies_);
  for (const cudaEvent_t event : {issued_, copied_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  if (copies_ != nullptr) cudaStreamDestroy(copies_);
}

void KvCopyStream::Start(const KvBlockCopies& copies) {
  if (copies.copies.empty()) return;
  constexpr char kWhat[] = "copying blocks of a KV cache beside steps";
  CudaCheck(cudaEventRecord(issued_, stream_), kWhat);
  CudaCheck(cudaStreamWaitEvent(copies_, issued_), kWhat);
  CudaCheck(launch_(copies, kThreadBlocks, copies_), kWhat);
  CudaCheck(cudaEventRecord(copied_, copies_), kWhat);
  is_awaited_ = false;
}

void KvCopyStream::Await() {
  if (is_awaited_) return;
  CudaCheck(cudaStreamWaitEvent(stream_, copied_), "waiting for copied blocks of a KV cache");
  is_awaited_ = true;
}

void KvCopyStream::Synchronize() {
  CudaCheck(cudaStreamSynchronize(copies_), "waiting for copied blocks of a KV cache");
}

}  // namespace lockstep::cuda
