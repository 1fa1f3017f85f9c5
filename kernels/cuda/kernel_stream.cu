#include "kernels/cuda/kernel_stream.h"

#include <hopper_instructions.cuh>

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
