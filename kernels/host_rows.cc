#include "kernels/host_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace lockstep {
namespace {

template <typename Element>
void Widen(const void* row, int64_t count, float* out) {
  const Element* elements = static_cast<const Element*>(row);
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<Element, float>) {
      out[i] = elements[i];
    } else {
      out[i] = ToFloat(elements[i]);
    }
  }
}

}  // namespace

void WidenRow(const void* row, DType dtype, int64_t count, float* out) {
  switch (dtype) {
    case DType::kF32:
      return Widen<float>(row, count, out);
    case DType::kF16:
      return Widen<F16>(row, count, out);
    case DType::kBF16:
      return Widen<BF16>(row, count, out);
    case DType::kE4M3:
      return Widen<E4M3>(row, count, out);
  }
}

void NarrowRow(const float* row, int64_t count, DType dtype, void* out) {
  switch (dtype) {
    case DType::kF32:
      std::copy_n(row, count, static_cast<float*>(out));
      return;
    case DType::kF16:
      std::transform(row, row + count, static_cast<F16*>(out), &ToF16);
      return;
    case DType::kBF16:
      std::transform(row, row + count, static_cast<BF16*>(out), &ToBF16);
      return;
    case DType::kE4M3:
      std::transform(row, row + count, static_cast<E4M3*>(out), &ToE4M3);
      return;
  }
}

void ConvertRow(const void* row, DType from, int64_t count, DType to, void* out) {
  if (from == to) {
    std::memcpy(out, row, static_cast<size_t>(count * DTypeBytes(to)));
    return;
  }
  if (to == DType::kF32) return WidenRow(row, from, count, static_cast<float*>(out));
  constexpr int64_t kAtOnce = 1024;  // in the first-level cache
  float wide[kAtOnce];
  for (int64_t begin = 0; begin < count; begin += kAtOnce) {
    const int64_t these = std::min(kAtOnce, count - begin);
    WidenRow(static_cast<const std::byte*>(row) + begin * DTypeBytes(from), from, these, wide);
    NarrowRow(wide, these, to, static_cast<std::byte*>(out) + begin * DTypeBytes(to));
  }
}

}  // namespace lockstep
