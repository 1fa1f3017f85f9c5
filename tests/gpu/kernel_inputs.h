// What kernels are measured on: random numbers, since with zeros a GPU takes less power and runs
// faster.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/device_buffer.h"
#include "kernels/linear_weight.h"

namespace lockstep::bench {

class KernelInputs {
 public:
  // together_bytes: what copies of an input are together, as far as there may be so many; more than
  // any cache of the device holds.
  KernelInputs(cuda::CudaBackend& backend, int64_t together_bytes);

  int64_t NumCopies(int64_t bytes, int64_t most) const;
  // With bf16 numbers of both signs, half to 1 in size; read as f32 they are likewise, and as e4m3
  // numbers, too.
  void Fill(const DeviceBuffer& buffer);
  using Weights = std::vector<std::unique_ptr<LinearWeight>>;
  // Filled, as many as NumCopies says, for products of up to so many rows that quantize what they
  // multiply. Kept.
  const Weights& WeightsOf(const LinearShape& shape, int64_t num_rows);

 private:
  void Fill(LinearWeight& weight);

  cuda::CudaBackend& backend_;
  const int64_t together_bytes_;
  std::vector<uint16_t> numbers_;
  DeviceBuffer on_device_;  // the same
  std::map<std::tuple<int64_t, int64_t, Quantization>, Weights> weights_;
};

}  // namespace lockstep::bench
