// Vectors of integers and tile registers in plain C++: the logic of the tile kernels on any
// processor.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "gtest/gtest.h"
#include "kernels/cpu/quantized_table.h"

namespace lockstep::testing {

struct PortableLanes {
  static constexpr int kLanes = 16;
  struct F {
    float lane[kLanes];
  };
  struct I {
    int32_t lane[kLanes];
  };
  template <typename Vector, typename Lane>
  static Vector Make(Lane value) {
    Vector out;
    for (int i = 0; i < kLanes; ++i) out.lane[i] = value(i);
    return out;
  }
  static F Zero() { return Set(0.0f); }
  static F Set(float x) {
    return Make<F>([=](int) { return x; });
  }
  static F Load(const float* p) {
    return Make<F>([=](int i) { return p[i]; });
  }
  static void Store(float* p, const F& v) { std::memcpy(p, v.lane, sizeof(v)); }
  static F Mul(const F& a, const F& b) {
    return Make<F>([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static F Fma(const F& a, const F& b, const F& c) {
    return Make<F>([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
  }
  static F ToFloat(const I& v) {
    return Make<F>([&](int i) { return static_cast<float>(v.lane[i]); });
  }
  static I AddIntegers(const I& a, const I& b) {
    return Make<I>([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static I SetInteger(int32_t value) {
    return Make<I>([=](int) { return value; });
  }
  static F WidenScales(const char* p) {
    return Make<F>([=](int i) {
      uint16_t half;
      std::memcpy(&half, p + 2 * i, 2);
      const uint32_t bits = uint32_t{half} << 16;
      float value;
      std::memcpy(&value, &bits, 4);
      return value;
    });
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
  static void Prefetch(const char*) {}
  static void PrefetchPassing(const char*) {}
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

}  // namespace lockstep::testing
