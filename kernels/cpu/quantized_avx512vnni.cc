// Quantized kernels for AVX512-VNNI: vpdpbusd multiplies 64 pairs of bytes, unsigned by signed.
#include <immintrin.h>

#include "kernels/cpu/quantize_groups.h"
#include "kernels/cpu/quantized_avx512.h"
#include "kernels/cpu/quantized_kernels.h"
#include "kernels/cpu/vnni_dot.h"

namespace lockstep::cpu {
namespace {

struct VnniQuantized : Avx512Lanes {
  static constexpr int kTileRows = 6;
  static constexpr int kKeptRows = 6;
  static constexpr int kTwoChainRows = 4;

  static I BroadcastQuad(const char* p) {
    int32_t quad;
    __builtin_memcpy(&quad, p, 4);
    return _mm512_set1_epi32(quad);
  }
  // In sum's own register: the intrinsic lets GCC 12 move sums about and to the stack.
  static void AddQuads(I& sum, I weights, I quad) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(quad));
  }

  template <bool kInt4>
  using Dot = VnniDot<VnniQuantized, kInt4>;
};

}  // namespace

constinit const QuantizedKernels kAvx512VnniQuantized =
    MakeQuantizedKernels<VnniQuantized>("avx512vnni");

}  // namespace lockstep::cpu
