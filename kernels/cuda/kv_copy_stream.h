// Copies between a KV cache's blocks and the host's memory, beside the steps: on a stream of their
// own, which the backend's waits for by events.
#pragma once

#include <cuda_runtime.h>

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/kv_block_copies.h"

namespace lockstep::cuda {

// Of one direction, so that those of the other go beside them. For the step loop's thread, with the
// stream's device current; nothing is allocated after Create. Not while a step is recorded: a graph
// would take in the copies (and be refused, as nothing of it waits for them).
class KvCopyStream {
 public:
  // LaunchOffloadKv or LaunchRestoreKv.
  using Launch = cudaError_t(const KvBlockCopies& copies, int most_thread_blocks,
                             cudaStream_t stream);

  // Beside the current device's stream, which must outlive it. RESOURCE_EXHAUSTED, UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<KvCopyStream>> Create(cudaStream_t stream, Launch* launch);
  ~KvCopyStream();  // waits for the copies
  KvCopyStream(const KvCopyStream&) = delete;
  KvCopyStream& operator=(const KvCopyStream&) = delete;

  // Begins when all that was issued to the stream so far is done.
  void Start(const KvBlockCopies& copies);
  // What is issued to the stream from now on begins when all copies started so far are done.
  void Await();
  // The same for the host.
  void Synchronize();

 private:
  // That copy at once. A step that runs beside them loses these multiprocessors at most, and for
  // them it is little: with 4 KB to each of their 8 warps 256 KB are under way, of which a bus of
  // 64 GB/s (PCI Express 5.0, 16 lanes) takes 128 KB in 2 us, about as long as the host's memory
  // takes to answer. (Stores to the host are not waited for.)
  static constexpr int kThreadBlocks = 8;

  KvCopyStream(cudaStream_t stream, Launch* launch) : stream_(stream), launch_(launch) {}

  const cudaStream_t stream_;
  Launch* const launch_;
  cudaStream_t copies_ = nullptr;  // the copies' own
  cudaEvent_t issued_ = nullptr;   // what the copies come after, in stream_
  cudaEvent_t copied_ = nullptr;   // the copies started last, in copies_
  bool is_awaited_ = true;         // by stream_: copied_, or there was none
};

}  // namespace lockstep::cuda
