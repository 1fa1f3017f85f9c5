#include "kernels/cuda/kernel_stream.h"

#include <algorithm>

#include "kernels/cuda/cycle_counter.cuh"
#include "kernels/cuda/device.cuh"

namespace lockstep::cuda {
namespace {

constexpr int64_t kCyclesOfSmallKernel = 4000;  // two or three microseconds

__device__ inline void Spend(int64_t cycles) {
  CycleCounter counter(cycles);
  while (counter.Look() < cycles) {
  }
}

// So late that whoever did not wait for it would read what was there before.
__global__ void AddOneLate(int* value) {
  LetLaterKernelsBegin();
  WaitForEarlierKernels();
  Spend(2 * kCyclesOfSmallKernel);
  *value += 1;
}

// As attention with little to do: its other blocks end while those before it still run.
__global__ void OneBlockWaits() {
  LetLaterKernelsBegin();
  if (blockIdx.x == 0) WaitForEarlierKernels();
}

__global__ void StandInKernel() {
  LetLaterKernelsBegin();
  Spend(kCyclesOfSmallKernel);
}

// Nothing is made of what is read: volatile loads are done all the same.
__global__ void ReadKernel(const void* memory, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
#pragma unroll 4
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    ReadVector(static_cast<const uint4*>(memory) + i);
  }
}

// Counts on in device memory of two ints by kernels that overlap, behind all that they come behind
// in steps, as steps are recorded: a kernel, one of which few blocks wait, a copy, a recorded step;
// and as a recording's first.
class Counting {
 public:
  Counting(int* values, const KernelStream& stream) : values_(values), stream_(stream) {}
  ~Counting() {
    for (cudaGraphExec_t exec : execs_) {
      if (exec != nullptr) cudaGraphExecDestroy(exec);
    }
  }
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;

  static constexpr int kCount = 7;
  cudaError_t Run(int* count) {
    cudaError_t error = Replay(execs_[0], [&] { return CountFour(); });
    if (error == cudaSuccess) error = CountTwo(values_ + 1);
    if (error == cudaSuccess) error = Replay(execs_[1], [&] { return CountOne(values_ + 1); });
    if (error == cudaSuccess) {
      error = cudaMemcpyAsync(count, values_ + 1, sizeof(int), cudaMemcpyDeviceToHost, stream_);
    }
    const cudaError_t done = cudaStreamSynchronize(stream_);
    return error == cudaSuccess ? done : error;
  }

 private:
  cudaError_t CountOne(int* value) const {
    return LaunchOverlapping(AddOneLate, 1, 1, 0, stream_, value);
  }
  cudaError_t CountTwo(int* value) const {
    constexpr unsigned kBlocks = 64;
    cudaError_t error = CountOne(value);
    if (error == cudaSuccess) error = LaunchOverlapping(OneBlockWaits, kBlocks, 1, 0, stream_);
    return error == cudaSuccess ? CountOne(value) : error;
  }
  cudaError_t CountFour() const {
    cudaError_t error = cudaMemsetAsync(values_, 0, 2 * sizeof(int), stream_);
    if (error == cudaSuccess) error = Launch(AddOneLate, 1, 1, 0, stream_, values_);
    if (error == cudaSuccess) error = CountTwo(values_);
    if (error == cudaSuccess) {
      error = cudaMemcpyAsync(values_ + 1, values_, sizeof(int), cudaMemcpyDeviceToDevice, stream_);
    }
    return error == cudaSuccess ? CountOne(values_ + 1) : error;
  }

  template <typename Issue>
  cudaError_t Replay(cudaGraphExec_t& exec, const Issue& issue) const {
    cudaError_t error = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
    if (error != cudaSuccess) return error;
    cudaGraph_t graph = nullptr;
    error = issue();
    const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
    if (error == cudaSuccess) error = ended;
    if (error == cudaSuccess) error = cudaGraphInstantiate(&exec, graph, 0);
    if (graph != nullptr) cudaGraphDestroy(graph);
    return error == cudaSuccess ? cudaGraphLaunch(exec, stream_) : error;
  }

  int* const values_;
  const KernelStream stream_;
  cudaGraphExec_t execs_[2] = {};
};

}  // namespace

// Others can only come beside it on a multiprocessor divided as they need it (device.cuh).
cudaError_t LaunchStandIn(int num_blocks, int shared_bytes, const KernelStream& stream) {
  cudaError_t error = cudaSuccess;
  if (shared_bytes > 0) {  // never less again: another thread may be about to launch with more
    error = cudaFuncSetAttribute(StandInKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 shared_bytes);
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(StandInKernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
  }
  if (error != cudaSuccess) return error;
  return Launch(StandInKernel, static_cast<unsigned>(num_blocks), 1,
                static_cast<size_t>(shared_bytes), stream);
}

cudaError_t LaunchRead(const void* memory, int64_t bytes, const KernelStream& stream) {
  constexpr int64_t kMostBlocks = 1024;
  constexpr int kThreads = 256;
  constexpr int64_t kReadsOfThread = 16;
  const int64_t count = bytes / static_cast<int64_t>(sizeof(uint4));
  const int64_t blocks = std::min(CeilDiv(count, kThreads * kReadsOfThread), kMostBlocks);
  if (blocks == 0) return cudaSuccess;
  return Launch(ReadKernel, static_cast<unsigned>(blocks), kThreads, 0, stream, memory, count);
}

cudaError_t FindKernels() {
  cudaFuncAttributes attributes = {};
  return cudaFuncGetAttributes(&attributes, AddOneLate);
}

bool KernelsCanOverlap(cudaStream_t stream, std::string* refused) {
  constexpr int kFirstWithTheInstruction = 90;
  cudaFuncAttributes attributes = {};
  const bool ought_to = cudaFuncGetAttributes(&attributes, AddOneLate) == cudaSuccess &&
                        attributes.ptxVersion >= kFirstWithTheInstruction;
  if (!ought_to) {
    cudaGetLastError();  // who cannot does without
    return false;
  }
  int* values = nullptr;
  int count = 0;
  // Loaded before it is recorded.
  cudaError_t error = cudaFuncGetAttributes(&attributes, OneBlockWaits);
  if (error == cudaSuccess) error = cudaMalloc(&values, 2 * sizeof(int));
  if (error == cudaSuccess) error = Counting(values, KernelStream(stream, true)).Run(&count);
  if (values != nullptr) cudaFree(values);
  cudaGetLastError();
  if (error == cudaSuccess && count == Counting::kCount) return true;
  if (refused != nullptr) {
    *refused = error != cudaSuccess ? cudaGetErrorString(error)
                                    : "they counted to " + std::to_string(count) + " instead of " +
                                          std::to_string(Counting::kCount);
  }
  return false;
}

}  // namespace lockstep::cuda
