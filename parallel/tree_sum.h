// The one addition that every all-reduce is made of, so that all bodies agree to the bit.
//
// Which NaN comes out of NaN + NaN depends on the order of operands, which a compiler may swap from
// one call site to the next; with a single compiled body for every element of every call, ranks
// agree on NaNs too.
#pragma once

#include <cstdint>
#include <span>

namespace lockstep {

// out[i] = low[i] + high[i], low being the sum over the lower ranks. out may be low or high.
void AddLowHigh(const float* low, const float* high, int64_t count, float* out);

// For at least one part: parts[0][i] = the sum over parts, i in [begin, end), in the binary tree of
// neighbours
// ((p0+p1)+(p2+p3))+...; the elements [begin, end) of the other parts are overwritten.
void TreeSumInPlace(std::span<float* const> parts, int64_t begin, int64_t end);

// The same sum of elements [begin, end) into out[0 .. end - begin), leaving the parts alone; out
// may be one of them from element begin on.
void TreeSum(std::span<float* const> parts, int64_t begin, int64_t end, float* out);

}  // namespace lockstep
