#include "kernels/cuda/work_mark.h"

#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"

namespace lockstep::cuda {
namespace {

class EventMark final : public WorkMark {
 public:
  EventMark(int device, cudaEvent_t event, cudaStream_t stream)
      : device_(device), event_(event), stream_(stream) {}
  ~EventMark() override { cudaEventDestroy(event_); }

  void Set() override {
    UseDevice();
    CudaCheck(cudaEventRecord(event_, stream_), "marking a place");
  }
  bool IsReached() override {
    UseDevice();
    const cudaError_t reached = cudaEventQuery(event_);
    if (reached == cudaErrorNotReady) return false;
    CudaCheck(reached, "looking at a mark");
    return true;
  }
  void WaitUntilReached() override {
    UseDevice();
    CudaCheck(cudaEventSynchronize(event_), "waiting for a mark");
  }

 private:
  // A thread's first call would else make a context, hundreds of MB, on the first device.
  void UseDevice() const { CudaCheck(cudaSetDevice(device_), "choosing a GPU"); }

  const int device_;
  const cudaEvent_t event_;
  const cudaStream_t stream_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WorkMark>> MakeWorkMark(cudaStream_t stream) {
  int device = 0;
  RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "asking for the device"));
  cudaEvent_t event = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "a mark"));
  return std::make_unique<EventMark>(device, event, stream);
}

}  // namespace lockstep::cuda
