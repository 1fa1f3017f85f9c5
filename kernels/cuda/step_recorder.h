// Steps that repeat, kept as CUDA graphs: some hundred launches become one.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>

#include "absl/status/status.h"

namespace lockstep::cuda {

// Used by the step loop's thread.
class StepRecorder {
 public:
  explicit StepRecorder(cudaStream_t stream) : stream_(stream) {}
  ~StepRecorder() { Forget(); }
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  // The first time of a key, body runs as it is (libraries choose and connect then); the second
  // time it is recorded; from then on the recording runs.
  absl::Status Repeat(uint64_t key, const std::function<absl::Status()>& body);
  // Every key is a new one again. What recordings have under way still runs.
  void Forget();

 private:
  struct Step {
    cudaGraphExec_t graph = nullptr;  // null: seen once
  };
  absl::Status Record(Step& step, const std::function<absl::Status()>& body);

  static constexpr size_t kMaxSteps = 512;  // further keys run as they are
  const cudaStream_t stream_;
  std::map<uint64_t, Step> steps_;
};

}  // namespace lockstep::cuda
