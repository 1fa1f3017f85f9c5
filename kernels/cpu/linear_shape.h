// The checks on a LinearShape that every CPU body makes.
#pragma once

#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "kernels/base/check.h"
#include "kernels/dtype.h"
#include "kernels/linear_weight.h"

namespace lockstep::cpu {

inline constexpr int64_t kMaxFeatures = int64_t{1}
                                        << 31;  // of either side, so that their product fits int64
inline constexpr int kMaxKSlices = 1024;
inline constexpr int kMaxTreeLevels = 12;  // log2(kMaxKSlices) + 2
static_assert((1 << (kMaxTreeLevels - 2)) >= kMaxKSlices);
inline constexpr int kBlocksPerThread = 8;  // evens out threads that the system runs unequally

inline int64_t CeilDiv(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

// INVALID_ARGUMENT naming the field, its value and the limit.
absl::Status CheckLinearShape(const LinearShape& shape);

// CHECKs that `rows` fit the weight from first_row on.
void CheckHostRows(const LinearShape& shape, int64_t first_row, const HostRows& rows);

// Element `index` of a checkpoint row, widened.
inline float HostElement(const void* row, DType dtype, int64_t index) {
  const char* p = static_cast<const char*>(row) + index * DTypeBytes(dtype);
  uint16_t half;
  switch (dtype) {
    case DType::kF32:
      float value;
      std::memcpy(&value, p, 4);
      return value;
    case DType::kF16:
      std::memcpy(&half, p, 2);
      return ToFloat(F16{half});
    case DType::kBF16:
      std::memcpy(&half, p, 2);
      return ToFloat(BF16{half});
    case DType::kE4M3:
      return ToFloat(E4M3{static_cast<uint8_t>(*p)});
  }
  LS_CHECK(false) << "unknown dtype";
  return 0.0f;
}

// The same the other way: rounded to the dtype.
inline void SetHostElement(void* row, DType dtype, int64_t index, float value) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(row)[index] = value;
      return;
    case DType::kF16:
      static_cast<F16*>(row)[index] = ToF16(value);
      return;
    case DType::kBF16:
      static_cast<BF16*>(row)[index] = ToBF16(value);
      return;
    case DType::kE4M3:
      static_cast<E4M3*>(row)[index] = ToE4M3(value);
      return;
  }
}

}  // namespace lockstep::cpu
