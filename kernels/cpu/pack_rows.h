// Rows of a checkpoint turned into lines of a panel (packed_linear.h): loading spends its time
// here.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/linear_weight.h"

namespace lockstep::cpu {

// Elements of k packed for all rows of a panel before going on.
inline constexpr int64_t kPackChunk = 256;

// A rectangle: rows [first, first + num_rows) of the given ones, at most kMaxPanelColumns, and
// elements [k0, k1) of each, at most kPackChunk.
struct PackChunk {
  int64_t first;
  int64_t num_rows;
  int64_t k0;
  int64_t k1;
};

// Writes lines of `columns` words of 32 bits, one line per k (f32) or pair of k (bf16; a missing
// last element is zero): word r of a line comes from row r of the chunk. out: word 0 of the chunk's
// first line. Other words of the lines are left alone.
void PackRows(const HostRows& rows, const PackChunk& chunk, DType to, int64_t columns, char* out);

}  // namespace lockstep::cpu
