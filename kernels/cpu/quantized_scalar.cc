// Quantized kernels for any processor.
#include <cstring>

#include "kernels/cpu/quantized_kernels.h"
#include "kernels/cpu/quantized_scalar.h"

namespace lockstep::cpu {
namespace {

struct ScalarQuantized : ScalarLanes {
  static constexpr int kTileRows = 4;
  static constexpr int kKeptRows = 0;
  static constexpr int kTwoChainRows = 4;
  struct Quad {
    int8_t x[4];
  };

  static Quad BroadcastQuad(const char* p) {
    Quad quad;
    std::memcpy(quad.x, p, 4);
    return quad;
  }

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
