// Steps that repeat, kept as CUDA graphs: some hundred launches become one.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>

#include "absl/status/status.h"
#include "kernels/step_work.h"

namespace lockstep::cuda {

// Used by the step loop's thread.
class StepRecorder {
 public:
  // max_steps: how many keys are remembered, and so how much memory recordings take at most; the
  // one that was used longest ago makes room for a new one. At least 1. Where the device has no
  // memory for so many, half of those that there are make room, and no more are kept from then on.
  explicit StepRecorder(cudaStream_t stream, size_t max_steps = 512)
      : stream_(stream), most_steps_(max_steps), max_steps_(max_steps) {}
  ~StepRecorder() { Forget(); }
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  // The first time of a key, body runs as it is (libraries choose and connect then); the second
  // time it is recorded; from then on the recording runs. A step for whose recording there is no
  // memory runs as it is.
  absl::Status Repeat(const StepKey& key, const std::function<absl::Status()>& body);
  // Records the step of a key, unless it is already, without running it. Makes no room: once there
  // is no memory for one, it and all others asked for are left.
  absl::Status Keep(const StepKey& key, const std::function<absl::Status()>& body);
  bool has_left_some() const { return has_left_some_; }
  size_t num_steps() const { return steps_.size(); }
  // Every key is a new one again. What recordings have under way still runs.
  void Forget();

 private:
  struct Step {
    cudaGraphExec_t graph = nullptr;  // null: seen once
    uint64_t last_use = 0;
  };
  void Remember(const StepKey& key);
  void ForgetOldest();
  void MakeRoom();
  absl::Status Record(Step& step, const std::function<absl::Status()>& body);

  const cudaStream_t stream_;
  const size_t most_steps_;
  size_t max_steps_;  // fewer where memory is short
  bool has_left_some_ = false;
  uint64_t num_uses_ = 0;
  std::map<StepKey, Step> steps_;
};

}  // namespace lockstep::cuda
