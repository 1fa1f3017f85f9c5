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
    cpu::SetHostElement(out, to, i, cpu::HostElement(row, from, i));
  }
}

}  // namespace lockstep::cuda
