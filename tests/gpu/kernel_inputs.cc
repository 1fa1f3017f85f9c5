#include "tests/gpu/kernel_inputs.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <random>

#include "kernels/base/check.h"
#include "kernels/cuda/cuda_status.h"
#include "tests/gpu/measuring.h"

namespace lockstep::bench {
namespace {

constexpr int64_t kNumNumbers = int64_t{1} << 24;

}  // namespace

KernelInputs::KernelInputs(cuda::CudaBackend& backend, int64_t together_bytes)
    : backend_(backend),
      together_bytes_(together_bytes),
      numbers_(static_cast<size_t>(kNumNumbers)) {
  std::mt19937 random(1);
  for (uint16_t& x : numbers_) {
    x = static_cast<uint16_t>((random() & 0x807f) | 0x3f00);
    if ((x & 0xff) == 0x7f) --x;  // NaN, as e4m3
  }
  constexpr int64_t kBytes = kNumNumbers * int64_t{sizeof(uint16_t)};
  on_device_ = Value(backend_.Allocate(kBytes));
  backend_.CopyToDevice(on_device_.data(), numbers_.data(), kBytes);
}

int64_t KernelInputs::NumCopies(int64_t bytes, int64_t most) const {
  return std::clamp<int64_t>(together_bytes_ / std::max<int64_t>(bytes, 1), 1, most);
}

void KernelInputs::Fill(const DeviceBuffer& buffer) {
  for (int64_t begin = 0; begin < buffer.bytes(); begin += on_device_.bytes()) {
    const int64_t bytes = std::min(on_device_.bytes(), buffer.bytes() - begin);
    cuda::CudaCheck(
        cudaMemcpyAsync(buffer.as<std::byte>() + begin, on_device_.data(),
                        static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, backend_.stream()),
        "filling an input");
  }
}

const KernelInputs::Weights& KernelInputs::WeightsOf(const LinearShape& shape, int64_t num_rows) {
  const bool is_fp8 = shape.quantization == Quantization::kFp8;
  const ProductInputs inputs = {.num_rows = num_rows, .width = is_fp8 ? shape.in_features : 0};
  LS_CHECK(backend_.ReserveForProducts(backend_.ProductBytes(inputs)).ok());
  Weights& weights = weights_[{shape.out_features, shape.in_features, shape.quantization}];
  if (!weights.empty()) return weights;
  const int64_t bytes = shape.out_features * shape.in_features * (is_fp8 ? 1 : 2);
  for (int64_t i = 0; i < NumCopies(bytes, 32); ++i) {
    weights.push_back(Value(backend_.AllocateLinear(shape)));
    Fill(*weights.back());
  }
  backend_.Synchronize();
  return weights;
}

void KernelInputs::Fill(LinearWeight& weight) {
  const int64_t width = weight.shape().in_features;
  const int64_t rows_at_once = kNumNumbers / width;
  LS_CHECK(rows_at_once > 0) << "rows of " << width << " numbers";
  for (int64_t row = 0; row < weight.shape().out_features; row += rows_at_once) {
    const int64_t count = std::min(rows_at_once, weight.shape().out_features - row);
    backend_.FillLinear(weight, row, {numbers_.data(), DType::kBF16, count, 2 * width});
  }
}

}  // namespace lockstep::bench
