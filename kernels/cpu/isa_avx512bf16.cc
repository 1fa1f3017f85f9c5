// Kernels for AVX-512 with the bf16 dot product vdpbf16ps, whose order (odd, even) and flushing of
// denormals the bf16 path has everywhere.
#include "kernels/cpu/avx512_vector.h"
#include "kernels/cpu/make_kernels.h"

namespace lockstep::cpu {
namespace {

alignas(64) constexpr uint16_t kUpperHalves[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                   23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                   45, 47, 49, 51, 53, 55, 57, 59, 61, 63};

struct Avx512Bf16Vector : Avx512Vector {
  static constexpr bool kNativePairs = true;
  static Pairs SetPair(uint32_t pair) { return _mm512_set1_epi32(static_cast<int>(pair)); }
  // The pairs that RoundToBf16 left in the upper halves of two consecutive vectors' lanes.
  static F JoinPairs(F a, F b) {
    return FromBits(_mm512_permutex2var_epi16(Bits(a), _mm512_load_si512(kUpperHalves), Bits(b)));
  }
  static F DotPairs(F sum, Pairs a, Pairs b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  }
};

}  // namespace

constinit const VectorKernels kAvx512Bf16Kernels =
    MakeKernels<Avx512Bf16Vector>("avx512bf16", kAvx512VnniQuantized);
constinit const VectorKernels kAmxKernels = MakeKernels<Avx512Bf16Vector>("amx", kAmxQuantized);

}  // namespace lockstep::cpu
