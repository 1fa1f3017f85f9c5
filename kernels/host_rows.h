// Rows of numbers in host memory: as f32, exactly, and back.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace lockstep {

// out[i] = row[i], i in [0, count); row holds elements of dtype, aligned to their size.
void WidenRow(const void* row, DType dtype, int64_t count, float* out);

// The other way: rounded to nearest, ties to even.
void NarrowRow(const float* row, int64_t count, DType dtype, void* out);

// Both: out[i] of `to` = row[i] of `from`.
void ConvertRow(const void* row, DType from, int64_t count, DType to, void* out);

}  // namespace lockstep
