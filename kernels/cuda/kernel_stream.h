// Where kernels are issued, and whether they may overlap.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace lockstep::cuda {

// A kernel that overlaps may begin while the one before it in the stream still runs. A block of it
// waits for that one (WaitForEarlierKernels) before it reads what earlier kernels of the step wrote
// and before it writes anything, and one block waits in any case, so that this kernel's end is that
// of all before. What blocks do until then, fetching weights above all, costs the step nothing.
//
// A step's first kernel begins when all that was issued before the step is done: it is none that
// overlaps (tokens' embedding), or comes straight behind a copy, of what a later pipeline stage has
// received, or first in a recorded step, neither of which is overlapped. So what was written before
// the step may be read at any time. Source: CUDA C++ Programming Guide, "Programmatic Dependent
// Launch and Synchronization".
struct KernelStream {
  KernelStream(cudaStream_t stream, bool overlaps = false)  // NOLINT: any stream is one
      : stream(stream), overlaps(overlaps) {}

  operator cudaStream_t() const { return stream; }

  cudaStream_t stream;
  bool overlaps;
};

// Whether this program's kernels can overlap on the current device, in graphs, too: tried with a
// few small ones. False before compute capability 9.0, and where kernels were compiled for what
// came before it. Waits for the stream.
bool KernelsCanOverlap(cudaStream_t stream);

// A kernel that does nothing for about as long as a step's small kernels take, which the next one
// may overlap: what kernels are measured behind. Each of its blocks of one thread holds
// shared_bytes of shared memory.
cudaError_t LaunchStandIn(int num_blocks, int shared_bytes, const KernelStream& stream);
// Reads device memory, so that the second-level cache holds little else, and nothing that has
// still to be written back. `bytes` is rounded down to 16.
cudaError_t LaunchRead(const void* memory, int64_t bytes, const KernelStream& stream);

}  // namespace lockstep::cuda
