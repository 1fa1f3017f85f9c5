// Tile registers, and the operations around them, in plain C++: the logic of the tile kernels on
// any processor.
#pragma once

#include <cstdint>
#include <cstring>

#include "gtest/gtest.h"
#include "kernels/cpu/quantized_scalar.h"
#include "kernels/cpu/quantized_table.h"

namespace lockstep::testing {
namespace {

struct PortableLanes : cpu::ScalarLanes {
  static I SetInteger(int32_t value) {
    return Make<I>([=](int) { return value; });
  }
  static I LoadBytes(const char* p) {
    I v;
    std::memcpy(&v, p, sizeof(v));
    return v;
  }
  static void StoreBytes(char* p, const I& v) { std::memcpy(p, &v, sizeof(v)); }
  static I LowHalves(const I& v) {
    return Make<I>([&](int i) { return v.lane[i] & 0x0f0f0f0f; });
  }
  static I HighHalves(const I& v) {
    return Make<I>([&](int i) { return v.lane[i] >> 4 & 0x0f0f0f0f; });
  }
};

// tdpbsud over registers of at most 16 rows of 64 bytes, which refuses shapes that AMX refuses.
class EmulatedTiles {
 public:
  EmulatedTiles(int rows, int group_k) : rows_(rows), group_k_(group_k) {
    EXPECT_TRUE(rows >= 1 && rows <= 16) << rows;
    EXPECT_TRUE(group_k >= 4 && group_k <= 64 && group_k % 4 == 0) << group_k;
  }
  void Multiply(const char* x, const char* w, int32_t* sums) const {
    for (int r = 0; r < rows_; ++r) {
      for (int column = 0; column < cpu::kQuantizedColumns; ++column) {
        int32_t sum = 0;
        for (int k = 0; k < group_k_; ++k) {
          const int64_t at = k / 4 * cpu::kQuantizedColumns * 4 + column * 4 + k % 4;
          sum += static_cast<int8_t>(x[r * group_k_ + k]) * static_cast<uint8_t>(w[at]);
        }
        sums[r * cpu::kQuantizedColumns + column] = sum;
      }
    }
  }

 private:
  const int rows_;
  const int group_k_;
};

}  // namespace
}  // namespace lockstep::testing
