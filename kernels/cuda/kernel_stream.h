// Where kernels are issued, and whether they may overlap.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <utility>

namespace lockstep::cuda {

// A kernel that overlaps may begin while the one before it in the stream still runs. A block of it
// waits for that one (WaitForEarlierKernels) before it reads what earlier kernels of the step wrote
// and before it writes anything, and one block waits in any case, so that this kernel's end is that
// of all before. What blocks do until then, fetching weights above all, costs the step nothing.
//
// A step's first kernel begins when all that was issued before the step is done: the one that is
// launched first after Backend::BeginStep does not overlap, whichever it is (tokens' embedding; of
// a later pipeline stage a norm, or what ranks exchange, where a rank has no tokens to norm). So
// what was written before the step may be read at any time: by LoadFromCache2 where other steps
// wrote to the same place, which a multiprocessor's own cache may still remember (PTX ISA,
// "griddepcontrol", promises to show what was written only to who waits). Nor does a kernel overlap
// NCCL's before it, which may leave more than a kernel in the stream. Source: CUDA C++ Programming
// Guide, "Programmatic Dependent Launch and Synchronization".
struct KernelStream {
  KernelStream(cudaStream_t stream, bool overlaps = false)  // NOLINT: any stream is one
      : stream(stream), overlaps(overlaps) {}

  operator cudaStream_t() const { return stream; }

  // The next kernel does not overlap what was issued before it.
  void HoldNext() const {
    if (holds_next != nullptr) *holds_next = true;
  }
  // Whether that is the kernel which is about to be launched; the one after it is not.
  bool TakeHold() const { return holds_next != nullptr && std::exchange(*holds_next, false); }

  cudaStream_t stream;
  bool overlaps;
  // Shared by all copies, which are used by one thread at a time. Null: no kernel is held.
  bool* holds_next = nullptr;
};

// Loads one of this program's kernels: what the current device says to all of them.
cudaError_t FindKernels();

// Whether this program's kernels can overlap on the current device, in graphs, too: tried with a
// few small ones. False before compute capability 9.0, and where kernels were compiled for what
// came before it; of one that ought to, *refused says why not. Waits for the stream.
bool KernelsCanOverlap(cudaStream_t stream, std::string* refused = nullptr);

// A kernel that does nothing for about as long as a step's small kernels take, which the next one
// may overlap: what kernels are measured behind. Each of its blocks of one thread holds
// shared_bytes of shared memory.
cudaError_t LaunchStandIn(int num_blocks, int shared_bytes, const KernelStream& stream);
// Reads device memory, so that the second-level cache holds little else, and nothing that has
// still to be written back. `bytes` is rounded down to 16.
cudaError_t LaunchRead(const void* memory, int64_t bytes, const KernelStream& stream);

}  // namespace lockstep::cuda
