#include "kernels/cuda/step_recorder.h"

#include <algorithm>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"

namespace lockstep::cuda {

namespace {

// What it has under way still runs: the driver frees it afterwards.
void Destroy(cudaGraphExec_t graph) {
  if (graph != nullptr) cudaGraphExecDestroy(graph);
}

}  // namespace

void StepRecorder::Forget() {
  for (const auto& [key, step] : steps_) Destroy(step.graph);
  steps_.clear();
  max_steps_ = most_steps_;
  has_left_some_ = false;
}

absl::Status StepRecorder::Repeat(const StepKey& key, const std::function<absl::Status()>& body) {
  auto found = steps_.find(key);
  if (found == steps_.end()) {
    RETURN_IF_ERROR(body());
    Remember(key);
    return absl::OkStatus();
  }
  Step& step = found->second;
  step.last_use = ++num_uses_;
  if (step.graph == nullptr) RETURN_IF_ERROR(Record(step, body));
  if (step.graph == nullptr) {
    MakeRoom();
    return body();
  }
  return CudaStatus(cudaGraphLaunch(step.graph, stream_), "launching a recorded step");
}

absl::Status StepRecorder::Keep(const StepKey& key, const std::function<absl::Status()>& body) {
  const auto found = steps_.find(key);
  if (found != steps_.end() && found->second.graph != nullptr) return absl::OkStatus();
  has_left_some_ |= found == steps_.end() && steps_.size() >= max_steps_;
  if (has_left_some_) return absl::OkStatus();
  Step& step = steps_[key];
  step.last_use = ++num_uses_;
  RETURN_IF_ERROR(Record(step, body));
  if (step.graph == nullptr) {
    steps_.erase(key);
    max_steps_ = std::max<size_t>(steps_.size(), 1);
    has_left_some_ = true;
  }
  return absl::OkStatus();
}

void StepRecorder::Remember(const StepKey& key) {
  if (max_steps_ == 0) return;
  if (steps_.size() >= max_steps_) ForgetOldest();
  steps_.emplace(key, Step{.graph = nullptr, .last_use = ++num_uses_});
}

void StepRecorder::ForgetOldest() {
  const auto oldest = std::min_element(steps_.begin(), steps_.end(), [](auto& a, auto& b) {
    return a.second.last_use < b.second.last_use;
  });
  Destroy(oldest->second.graph);
  steps_.erase(oldest);
}

void StepRecorder::MakeRoom() {
  max_steps_ = steps_.size() / 2;
  while (steps_.size() > max_steps_) ForgetOldest();
}

// Leaves the step without a graph where there is no memory for it.
absl::Status StepRecorder::Record(Step& step, const std::function<absl::Status()>& body) {
  // Other threads may go on using the device meanwhile.
  RETURN_IF_ERROR(CudaStatus(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
                             "recording a step"));
  const absl::Status status = body();
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
  if (status.ok() && ended == cudaSuccess) {
    cudaError_t made = cudaGraphInstantiate(&step.graph, graph, 0);
    cudaGraphDestroy(graph);
    // Part of the memory is taken only then.
    if (made == cudaSuccess) made = cudaGraphUpload(step.graph, stream_);
    if (made == cudaSuccess) return absl::OkStatus();
    Destroy(std::exchange(step.graph, nullptr));
    if (made != cudaErrorMemoryAllocation) {
      return CudaStatus(made, "instantiating a recorded step");
    }
    cudaGetLastError();
    return absl::OkStatus();
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
  RETURN_IF_ERROR(status);
  return CudaStatus(ended, "recording a step");
}

}  // namespace lockstep::cuda
