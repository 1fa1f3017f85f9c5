// The vector operations of the quantized kernels in plain C++, for any processor.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/quantize_groups.h"

namespace lockstep::cpu {
namespace {

struct ScalarLanes {
  static constexpr int kLanes = 8;
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
  static void Store(float* p, const F& v) {
    for (int i = 0; i < kLanes; ++i) p[i] = v.lane[i];
  }
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
  static F WidenScales(const char* p) {
    return Make<F>([=](int i) {
      uint16_t bits;
      std::memcpy(&bits, p + 2 * i, 2);
      return FloatOfBits(uint32_t{bits} << 16);
    });
  }
  static void Prefetch(const char*) {}
  static void PrefetchPassing(const char*) {}
};

}  // namespace
}  // namespace lockstep::cpu
