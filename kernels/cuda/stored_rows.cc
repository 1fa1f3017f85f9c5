#include "kernels/cuda/stored_rows.h"

#include <cstring>

#include "kernels/cpu/linear_shape.h"

namespace lockstep::cuda {

void ConvertRow(const void* row, DType from, int64_t count, DType to, void* out) {
  if (from == to) {
    std::memcpy(out, row, static_cast<size_t>(count * DTypeBytes(to)));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const float value = cpu::HostElement(row, from, i);
    if (to == DType::kF32) {
      static_cast<float*>(out)[i] = value;
    } else {
      static_cast<BF16*>(out)[i] = ToBF16(value);
    }
  }
}

}  // namespace lockstep::cuda
