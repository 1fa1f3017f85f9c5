// Kernels for AVX-512 with the bf16 dot product vdpbf16ps, whose order (odd, even) and flushing of
// denormals the bf16 path has everywhere.
#include "kernels/cpu/avx512_vector.h"
#include "kernels/cpu/make_kernels.h"

namespace lockstep::cpu {
namespace {

struct Avx512Bf16Vector : Avx512Vector {
  static constexpr bool kNativePairs = true;
  static Pairs SetPair(uint32_t pair) { return _mm512_set1_epi32(static_cast<int>(pair)); }
  static F DotPairs(F sum, Pairs a, Pairs b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  }
};

}  // namespace

constinit const VectorKernels kAvx512Bf16Kernels = MakeKernels<Avx512Bf16Vector>("avx512bf16");

}  // namespace lockstep::cpu
