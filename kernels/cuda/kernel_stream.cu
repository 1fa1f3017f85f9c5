#include "kernels/cuda/kernel_stream.h"

#include <hopper_instructions.cuh>

#include <algorithm>

#include "kernels/cuda/device.cuh"

namespace lockstep::cuda {
namespace {

__global__ void AddOne(int* value) {
  LetLaterKernelsBegin();
  WaitForEarlierKernels();
  *value += 1;
}

__global__ void StandInKernel() {
  constexpr int64_t kCycles = 4000;  // two or three microseconds
  LetLaterKernelsBegin();
  const int64_t begin = ClockCycles();
  while (ClockCycles() - begin < kCycles) {
  }
}

// Nothing is made of what is read: volatile loads are done all the same.
__global__ void ReadKernel(const void* memory, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
#pragma unroll 4
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    ReadVector(static_cast<const uint4*>(memory) + i);
  }
}

cudaError_t IssueTwo(int* value, const KernelStream& stream) {
  cudaError_t error = cudaMemsetAsync(value, 0, sizeof(int), stream);
  if (error == cudaSuccess) error = Launch(AddOne, 1, 1, 0, stream, value);
  if (error == cudaSuccess) error = LaunchOverlapping(AddOne, 1, 1, 0, stream, value);
  return error;
}

// As steps are recorded.
cudaError_t Record(int* value, const KernelStream& stream, cudaGraphExec_t* exec) {
  cudaError_t error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  if (error != cudaSuccess) return error;
  cudaGraph_t graph = nullptr;
  const cudaError_t issued = IssueTwo(value, stream);
  error = cudaStreamEndCapture(stream, &graph);
  if (issued == cudaSuccess && error == cudaSuccess) error = cudaGraphInstantiate(exec, graph, 0);
  if (graph != nullptr) cudaGraphDestroy(graph);
  return issued == cudaSuccess ? error : issued;
}

cudaError_t CountTwo(int* value, const KernelStream& stream, int* count) {
  cudaGraphExec_t exec = nullptr;
  cudaError_t error = Record(value, stream, &exec);
  if (error == cudaSuccess) error = cudaGraphLaunch(exec, stream);
  if (error == cudaSuccess) {
    error = cudaMemcpyAsync(count, value, sizeof(int), cudaMemcpyDeviceToHost, stream);
  }
  const cudaError_t done = cudaStreamSynchronize(stream);
  if (exec != nullptr) cudaGraphExecDestroy(exec);
  return error == cudaSuccess ? done : error;
}

}  // namespace

cudaError_t LaunchStandIn(const KernelStream& stream) {
  return Launch(StandInKernel, 1, kWarpSize, 0, stream);
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

bool KernelsCanOverlap(cudaStream_t stream) {
  constexpr int kFirstWithTheInstruction = 90;
  cudaFuncAttributes attributes = {};
  int* value = nullptr;
  int count = 0;
  const bool works = cudaFuncGetAttributes(&attributes, AddOne) == cudaSuccess &&
                     attributes.ptxVersion >= kFirstWithTheInstruction &&
                     cudaMalloc(&value, sizeof(int)) == cudaSuccess &&
                     CountTwo(value, KernelStream(stream, true), &count) == cudaSuccess;
  if (value != nullptr) cudaFree(value);
  cudaGetLastError();  // who cannot does without
  return works && count == 2;
}

}  // namespace lockstep::cuda
