// Rows of a checkpoint as the device keeps them.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace lockstep::cuda {

// out[i] = row[i] in the dtype `to` (rounded to nearest even), i in [0, count).
void ConvertRow(const void* row, DType from, int64_t count, DType to, void* out);

}  // namespace lockstep::cuda
