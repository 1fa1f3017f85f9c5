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
  static Pairs PairUp(F even, F odd) {
    return _mm512_or_si512(_mm512_srli_epi32(Bits(even), 16), Bits(odd));
  }
  static Pairs RoundToPairs(F a, F b) { return (__m512i)_mm512_cvtne2ps_pbh(b, a); }
  // Within each 128 bits: elements 0..3 to the first, 4..7 to the second.
  static void ZipRows(Pairs& first, Pairs& second) {
    const Pairs low = _mm512_unpacklo_epi16(first, second);
    second = _mm512_unpackhi_epi16(first, second);
    first = low;
  }
  static void UnzipSums(F& first, F& second) {
    const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i high = _mm512_add_epi64(low, _mm512_set1_epi64(4));
    const __m512i columns = _mm512_permutex2var_epi64(Bits(first), low, Bits(second));
    second = FromBits(_mm512_permutex2var_epi64(Bits(first), high, Bits(second)));
    first = FromBits(columns);
  }
  static F AsLanes(Pairs v) { return FromBits(v); }
  static F DotPairs(F sum, Pairs a, Pairs b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  }
};

}  // namespace

constinit const VectorKernels kAvx512Bf16Kernels =
    MakeKernels<Avx512Bf16Vector>("avx512bf16", kAvx512VnniQuantized);
constinit const VectorKernels kAmxPairsKernels =
    MakeKernels<Avx512Bf16Vector>("amx", kAmxQuantized);

}  // namespace lockstep::cpu
