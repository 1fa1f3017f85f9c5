// Quantized kernels for any processor.
#include <cmath>

#include "kernels/cpu/quantize_groups.h"
#include "kernels/cpu/quantized_kernels.h"

namespace lockstep::cpu {
namespace {

struct ScalarQuantized {
  static constexpr int kLanes = 8;
  static constexpr int kTileRows = 4;
  static constexpr int kKeptRows = 0;
  static constexpr int kTwoChainRows = 4;
  struct F {
    float lane[kLanes];
  };
  struct I {
    int32_t lane[kLanes];
  };
  struct Quad {
    int8_t x[4];
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
  static Quad BroadcastQuad(const char* p) {
    Quad quad;
    std::memcpy(quad.x, p, 4);
    return quad;
  }
  static void Prefetch(const char*) {}
  static void PrefetchPassing(const char*) {}

  template <bool kInt4>
  struct Dot {
    using Sum = I;
    struct Weights {
      uint8_t w[kLanes][4];
    };
    static Sum Start(int32_t offset) {
      return Make<I>([=](int) { return offset; });
    }
    static void Load(const char* p, Weights& first, Weights& second) {
      const uint8_t* bytes = reinterpret_cast<const uint8_t*>(p);
      for (int i = 0; i < kLanes * 4; ++i) {
        first.w[i / 4][i % 4] = kInt4 ? bytes[i] & 15 : bytes[i];
        second.w[i / 4][i % 4] =
            kInt4 ? static_cast<uint8_t>(bytes[i] >> 4) : bytes[i + kQuantizedColumns * 4];
      }
    }
    static void Add(Sum& sum, const Weights& weights, const Quad& quad) {
      for (int i = 0; i < kLanes; ++i) {
        for (int k = 0; k < 4; ++k) sum.lane[i] += weights.w[i][k] * quad.x[k];
      }
    }
    static I Finish(const Sum& sum, int32_t) { return sum; }
  };
};

}  // namespace

constinit const QuantizedKernels kScalarQuantized = MakeQuantizedKernels<ScalarQuantized>("scalar");

}  // namespace lockstep::cpu
