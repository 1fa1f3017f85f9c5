// Rows of a checkpoint as f32, exactly, and back.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace lockstep {

// out[i] = row[i], i in [0, count); row holds elements of dtype, aligned to their size.
void WidenRow(const void* row, DType dtype, int64_t count, float* out);

// The other way: rounded to nearest, ties to even.
void NarrowRow(const float* row, int64_t count, DType dtype, void* out);

}  // namespace lockstep
