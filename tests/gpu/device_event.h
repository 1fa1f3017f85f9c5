// An event of a stream that tells when it was reached.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "kernels/cuda/cuda_status.h"

namespace lockstep::bench {

class DeviceEvent {
 public:
  DeviceEvent() { cuda::CudaCheck(cudaEventCreate(&event_), "an event"); }
  ~DeviceEvent() { cudaEventDestroy(event_); }
  DeviceEvent(DeviceEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  DeviceEvent(const DeviceEvent&) = delete;

  void Record(cudaStream_t stream) { cuda::CudaCheck(cudaEventRecord(event_, stream), "an event"); }
  bool IsReached() const { return cudaEventQuery(event_) == cudaSuccess; }
  double SecondsSince(const DeviceEvent& earlier) const {
    float ms = 0.0f;
    cuda::CudaCheck(cudaEventElapsedTime(&ms, earlier.event_, event_), "the time between events");
    return 1e-3 * ms;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace lockstep::bench
