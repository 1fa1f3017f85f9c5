// The kernels of one step, each by itself: time, bytes and arithmetic beside the device's limits.
#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_backend.h"
#include "model/model_config.h"
#include "tests/gpu/bench_report.h"
#include "tests/gpu/device_limits.h"
#include "tests/gpu/kernel_inputs.h"

namespace lockstep::bench {

struct StepSize {
  int64_t num_seqs = 1;
  int64_t context = 1;     // of each sequence
  int64_t new_tokens = 1;  // of them, computed by this step
  int block_size = 16;
};

struct KernelBench {
  cuda::CudaBackend& backend;
  KernelInputs& inputs;
  const ModelConfig& config;
  Quantization quantize;  // of the products, but for the LM head
  int num_replays;        // of a measurement
  const DeviceLimits& limits;
  BenchReport& report;
};

// To the report, a line for each kernel: {"name", "times" (in the step), "seconds", "gb_per_s",
// "tflop_per_s", "share_of_limit" (the larger of bytes over read bandwidth and flops over products'
// rate, over seconds)}. Medians of recordings of many calls, as steps are recorded; inputs are
// random numbers, weights and caches rotate so that nothing is found in the device's caches.
void TimeKernels(const KernelBench& bench, const StepSize& size);

}  // namespace lockstep::bench
