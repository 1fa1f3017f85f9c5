// Copies of a KV cache's blocks to the host's memory, beside the steps: on a stream of their own,
// which the backend's waits for by events.
#pragma once

#include <cuda_runtime.h>

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/kv_block_copies.h"

namespace lockstep::cuda {

// For the step loop's thread, with the stream's device current; nothing is allocated after Create.
// Not while a step is recorded: a graph would take in the copies (and be refused, as nothing of it
// waits for them).
class KvOffload {
 public:
  // Of the current device's stream, which must outlive it. RESOURCE_EXHAUSTED, UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<KvOffload>> Create(cudaStream_t stream);
  ~KvOffload();  // waits for the copies
  KvOffload(const KvOffload&) = delete;
  KvOffload& operator=(const KvOffload&) = delete;

  // Begins when all that was issued to the stream so far is done.
  void Start(const KvBlockCopies& copies);
  // What is issued to the stream from now on begins when all copies started so far are done.
  void Await();
  // The same for the host.
  void Synchronize();

 private:
  // That copy at once. A step that runs beside them loses these multiprocessors at most, and for
  // them it is little, as stores to the host are not waited for: with 4 KB to each of their 8 warps
  // 256 KB are under way, of which a bus of 64 GB/s (PCI Express 5.0, 16 lanes) takes 128 KB in
  // 2 us.
  static constexpr int kThreadBlocks = 8;

  explicit KvOffload(cudaStream_t stream) : stream_(stream) {}

  const cudaStream_t stream_;
  cudaStream_t copies_ = nullptr;    // the copies' own
  cudaEvent_t computed_ = nullptr;   // what is to be copied, in stream_
  cudaEvent_t offloaded_ = nullptr;  // the copies started last, in copies_
  bool is_awaited_ = true;           // by stream_: offloaded_, or there was none
};

}  // namespace lockstep::cuda
