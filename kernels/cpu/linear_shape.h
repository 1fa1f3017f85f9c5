// The checks on a LinearShape that every CPU body makes.
#pragma once

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace lockstep::cpu {

inline constexpr int64_t kMaxFeatures = int64_t{1}
                                        << 31;  // of either side, so that their product fits int64
inline constexpr int kMaxKSlices = 1024;

// INVALID_ARGUMENT naming the field, its value and the limit.
absl::Status CheckLinearShape(const LinearShape& shape);

// CHECKs that `rows` fit the weight from first_row on.
void CheckHostRows(const LinearShape& shape, int64_t first_row, const HostRows& rows);

// Element `index` of a checkpoint row, widened.
float HostElement(const void* row, DType dtype, int64_t index);

}  // namespace lockstep::cpu
