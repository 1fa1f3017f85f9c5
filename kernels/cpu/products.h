// What products have left, as CPU bodies leave it: f32, as they name no other dtype.
#pragma once

#include "kernels/base/check.h"
#include "kernels/dtype.h"

namespace lockstep::cpu {

inline float* AsF32(void* product, DType dtype) {
  LS_CHECK(dtype == DType::kF32) << DTypeName(dtype);
  return static_cast<float*>(product);
}
inline const float* AsF32(const void* product, DType dtype) {
  return AsF32(const_cast<void*>(product), dtype);
}

}  // namespace lockstep::cpu
