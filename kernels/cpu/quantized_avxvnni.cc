// Quantized kernels for AVX-VNNI: vpdpbusd over 256 bits, on processors without AVX-512.
#include <immintrin.h>

#include "kernels/cpu/quantize_groups.h"
#include "kernels/cpu/quantized_kernels.h"
#include "kernels/cpu/quantized_vector256.h"
#include "kernels/cpu/vnni_dot.h"

namespace lockstep::cpu {
namespace {

struct AvxVnniQuantized : QuantizedVector256 {
  static constexpr int kTileRows = 5;
  static constexpr int kKeptRows = 0;
  static constexpr int kTwoChainRows = 2;

  static I SetInteger(int32_t value) { return _mm256_set1_epi32(value); }
  static I LowHalves(I bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi8(15)); }
  static I HighHalves(I bytes) { return LowHalves(_mm256_srli_epi32(bytes, 4)); }
  // In sum's own register, as in quantized_avx512vnni.cc.
  static void AddQuads(I& sum, I weights, I quad) {
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(weights), "x"(quad));
  }

  template <bool kInt4>
  using Dot = VnniDot<AvxVnniQuantized, kInt4>;
};

}  // namespace

constinit const QuantizedKernels kAvxVnniQuantized =
    MakeQuantizedKernels<AvxVnniQuantized>("avxvnni");

}  // namespace lockstep::cpu
