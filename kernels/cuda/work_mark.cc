#include "kernels/cuda/work_mark.h"

#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"

namespace lockstep::cuda {
namespace {

class EventMark final : public WorkMark {
 public:
  EventMark(cudaEvent_t event, cudaStream_t stream) : event_(event), stream_(stream) {}
  ~EventMark() override { cudaEventDestroy(event_); }

  void Set() override { CudaCheck(cudaEventRecord(event_, stream_), "marking a place"); }
  bool IsReached() override {
    const cudaError_t reached = cudaEventQuery(event_);
    if (reached == cudaErrorNotReady) return false;
    CudaCheck(reached, "looking at a mark");
    return true;
  }
  void WaitUntilReached() override {
    CudaCheck(cudaEventSynchronize(event_), "waiting for a mark");
  }

 private:
  const cudaEvent_t event_;
  const cudaStream_t stream_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WorkMark>> MakeWorkMark(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "a mark"));
  return std::make_unique<EventMark>(event, stream);
}

}  // namespace lockstep::cuda
