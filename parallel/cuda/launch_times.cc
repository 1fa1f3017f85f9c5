#include "parallel/cuda/launch_times.h"

#include <algorithm>
#include <array>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/step_recorder.h"

namespace lockstep::cuda {

absl::StatusOr<float> LaunchMilliseconds(const KernelStream& stream, const IssueWork& issue,
                                         const WaitForStream& wait) {
  constexpr char kTiming[] = "timing what ranks exchange";
  RETURN_IF_ERROR(issue());
  cudaEvent_t events[2] = {};
  absl::Status status;
  for (cudaEvent_t& event : events) status.Update(CudaStatus(cudaEventCreate(&event), "an event"));
  if (status.ok()) status = CudaStatus(cudaEventRecord(events[0], stream), kTiming);
  if (status.ok()) status = issue();
  if (status.ok()) status = CudaStatus(cudaEventRecord(events[1], stream), kTiming);
  if (status.ok()) status = wait();
  float milliseconds = 0;
  if (status.ok()) {
    status = CudaStatus(cudaEventElapsedTime(&milliseconds, events[0], events[1]), kTiming);
  }
  for (cudaEvent_t event : events) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  RETURN_IF_ERROR(status);
  return milliseconds;
}

absl::StatusOr<float> RecordedMilliseconds(const KernelStream& stream, const IssueWork& issue,
                                           const WaitForStream& wait) {
  constexpr int kLaunches = 10;
  StepRecorder recorder(stream);
  const auto step = [&] {
    return recorder.Repeat(0, [&]() -> absl::Status {
      for (int i = 0; i < kLaunches; ++i) RETURN_IF_ERROR(issue());
      return absl::OkStatus();
    });
  };
  for (int time = 0; time < 2; ++time) RETURN_IF_ERROR(step());  // the second records
  std::array<float, 3> times;
  for (float& time : times) {
    ASSIGN_OR_RETURN(time, LaunchMilliseconds(stream, step, wait));
  }
  std::sort(times.begin(), times.end());
  return times[1];
}

absl::StatusOr<bool> IsFaster(Communicator& host, const KernelStream& stream,
                              const WaitForStream& wait, const IssueWork& one,
                              const IssueWork& other) {
  // A look first, at who is slower by far.
  float look[2] = {};
  ASSIGN_OR_RETURN(look[0], LaunchMilliseconds(stream, one, wait));
  ASSIGN_OR_RETURN(look[1], LaunchMilliseconds(stream, other, wait));
  RETURN_IF_ERROR(host.AllReduceSum(look, 2));
  if (look[0] > 1.5f * look[1]) return false;
  float recorded[2] = {};
  ASSIGN_OR_RETURN(recorded[0], RecordedMilliseconds(stream, one, wait));
  ASSIGN_OR_RETURN(recorded[1], RecordedMilliseconds(stream, other, wait));
  RETURN_IF_ERROR(host.AllReduceSum(recorded, 2));
  return recorded[0] < recorded[1];
}

}  // namespace lockstep::cuda
