// Random weights from a counter: element i of a tensor is a function of (key, i) alone, so threads
// need no order. Pure; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/dtype.h"

namespace lockstep {

// The stream of one tensor.
uint64_t WeightKey(uint64_t seed, std::string_view tensor_name);

// Roughly normal numbers with mean 0: the sum of four random bytes (Irwin-Hall), looked up as an
// element of the dtype.
class RandomWeights {
 public:
  RandomWeights(DType dtype, double standard_deviation);

  // Elements [first, first + count) of the stream into dst, count * DTypeBytes(dtype) bytes. first
  // must be even.
  void Fill(uint64_t key, int64_t first, int64_t count, void* dst) const;

 private:
  static constexpr int kNumSums = 4 * 255 + 1;
  template <typename Bits>
  void FillBits(uint64_t key, int64_t first, int64_t count, Bits* dst) const;

  const DType dtype_;
  std::array<uint32_t, kNumSums> elements_;  // the dtype's bits by sum
};

// The bits of an element with this value, rounded to nearest. |value| must be 0 or a normal number
// of the dtype.
uint32_t ElementBits(DType dtype, double value);

}  // namespace lockstep
