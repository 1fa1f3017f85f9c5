// Kernels for AVX2 and FMA: 8 lanes, 16 registers, tiles of 6 x 16.
#include <immintrin.h>

#include "kernels/cpu/make_kernels.h"

namespace lockstep::cpu {
namespace {

// Loaded from kFirstLanes + 8 - n: n ones, then zeros.
alignas(64) constexpr int32_t kFirstLanes[16] = {-1, -1, -1, -1, -1, -1, -1, -1,
                                                 0,  0,  0,  0,  0,  0,  0,  0};

struct Avx2Vector {
  static constexpr int kWidth = 8;
  static constexpr int kTileRows = 6;
  static constexpr bool kNativePairs = false;
  using F = __m256;
  using Pairs = __m256i;

  static __m256i Bits(F v) { return _mm256_castps_si256(v); }
  static F FromBits(__m256i v) { return _mm256_castsi256_ps(v); }
  static __m256i FirstLanes(int n) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kFirstLanes + 8 - n));
  }

  static F Zero() { return _mm256_setzero_ps(); }
  static F Set(float x) { return _mm256_set1_ps(x); }
  static F Load(const float* p) { return _mm256_loadu_ps(p); }
  static F LoadFirst(const float* p, int n) { return _mm256_maskload_ps(p, FirstLanes(n)); }
  static void Store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static void StoreFirst(float* p, F v, int n) { _mm256_maskstore_ps(p, FirstLanes(n), v); }
  static F LoadBf16(const uint16_t* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return FromBits(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  static F LoadFirstBf16(const uint16_t* p, int n) {
    alignas(16) uint16_t first[8] = {};
    for (int i = 0; i < n; ++i) first[i] = p[i];
    return LoadBf16(first);
  }
  // See PortableVector. Upper and lower bytes apart: numbers below 16 are looked up, the denormals
  // among them.
  static constexpr int kE4m3Step = 32;
  static void WidenE4m3(const uint8_t* src, uint16_t* dst) {
    const __m256i low_digit = _mm256_set1_epi8(0x0f);
    const __m256i upper_of =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c,
                                                  0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c));
    const __m256i lower_of = _mm256_broadcastsi128_si256(
        _mm_set_epi64x(static_cast<int64_t>(0xf0e0d0c0b0a09080), 0x60402000c0800000));
    __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src));
    bytes = _mm256_permute4x64_epi64(bytes, 0xd8);  // so that halves of lanes unpack in order
    const __m256i magnitude = _mm256_and_si256(bytes, _mm256_set1_epi8(0x7f));
    const __m256i sign = _mm256_xor_si256(bytes, magnitude);
    const __m256i nan = _mm256_cmpeq_epi8(magnitude, _mm256_set1_epi8(0x7f));
    const __m256i is_small = _mm256_cmpgt_epi8(_mm256_set1_epi8(16), magnitude);
    __m256i upper = _mm256_and_si256(_mm256_srli_epi16(magnitude, 4), low_digit);
    upper = _mm256_add_epi8(upper, _mm256_set1_epi8(0x3c));
    __m256i lower = _mm256_andnot_si256(low_digit, _mm256_slli_epi16(magnitude, 4));
    upper = _mm256_blendv_epi8(upper, _mm256_shuffle_epi8(upper_of, magnitude), is_small);
    lower = _mm256_blendv_epi8(lower, _mm256_shuffle_epi8(lower_of, magnitude), is_small);
    upper = _mm256_or_si256(upper,
                            _mm256_or_si256(sign, _mm256_and_si256(nan, _mm256_set1_epi8(0x7f))));
    lower = _mm256_or_si256(lower, nan);
    __m256i* const out = reinterpret_cast<__m256i*>(dst);
    _mm256_storeu_si256(out, _mm256_unpacklo_epi8(lower, upper));
    _mm256_storeu_si256(out + 1, _mm256_unpackhi_epi8(lower, upper));
  }
  static F RoundToBf16(F v) {
    const __m256i bits = Bits(v);
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_and_si256(_mm256_add_epi32(bits, bias), upper);
    const __m256i quiet =
        _mm256_or_si256(_mm256_and_si256(bits, upper), _mm256_set1_epi32(0x00400000));
    return _mm256_blendv_ps(FromBits(rounded), FromBits(quiet), _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  }

  static F Add(F a, F b) { return _mm256_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm256_div_ps(a, b); }
  static F Max(F a, F b) { return _mm256_max_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F Negate(F a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
  static F Sqrt(F a) { return _mm256_sqrt_ps(a); }
  static F SelectLess(F a, F b, F yes, F no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
  }
  static F SelectNan(F a, F yes, F no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  }
  static F ScaleByPowerOfTwo(F p, F shifted) {
    return FromBits(_mm256_add_epi32(Bits(p), _mm256_slli_epi32(Bits(shifted), 23)));
  }

  static Pairs LoadPairs(const uint32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static F OddOf(Pairs v) {
    return FromBits(_mm256_and_si256(v, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static F EvenOf(Pairs v) { return FromBits(_mm256_slli_epi32(v, 16)); }

  static void Interleave(F& even, F& odd) {
    const F low = _mm256_unpacklo_ps(even, odd);
    const F high = _mm256_unpackhi_ps(even, odd);
    even = _mm256_permute2f128_ps(low, high, 0x20);
    odd = _mm256_permute2f128_ps(low, high, 0x31);
  }
  static float TreeSum(F v) {
    v = _mm256_add_ps(v, _mm256_permute_ps(v, 0xb1));
    v = _mm256_add_ps(v, _mm256_permute_ps(v, 0x4e));
    v = _mm256_add_ps(v, _mm256_permute2f128_ps(v, v, 0x01));
    return _mm256_cvtss_f32(v);
  }
  static float TreeMax(F v) {
    __m128 top = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    top = _mm_max_ps(top, _mm_movehl_ps(top, top));
    return _mm_cvtss_f32(_mm_max_ss(top, _mm_movehdup_ps(top)));
  }

  static void Transpose(F (&r)[8]) {
    F pair[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      pair[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      pair[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    F quad[8];  // quad[4 * h + c]: column c (and c + 4) of rows 4h .. 4h + 3
#pragma GCC unroll 2
    for (int h = 0; h < 8; h += 4) {
      quad[h] = _mm256_shuffle_ps(pair[h], pair[h + 2], 0x44);
      quad[h + 1] = _mm256_shuffle_ps(pair[h], pair[h + 2], 0xee);
      quad[h + 2] = _mm256_shuffle_ps(pair[h + 1], pair[h + 3], 0x44);
      quad[h + 3] = _mm256_shuffle_ps(pair[h + 1], pair[h + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      r[c] = _mm256_permute2f128_ps(quad[c], quad[c + 4], 0x20);
      r[c + 4] = _mm256_permute2f128_ps(quad[c], quad[c + 4], 0x31);
    }
  }
  // sum += a * b, in sum's own register: left to itself, GCC 12 puts the result where a was and
  // then runs out of registers (6 x 16 at 68 % of the peak instead of 95 %).
  static void FmaInto(F& sum, F a, F b) {
    F own = sum;  // an array's element as the operand would keep the array in memory
    asm("vfmadd231ps %2, %1, %0" : "+x"(own) : "x"(a), "x"(b));
    sum = own;
  }
  static void Pin(F& v) { asm volatile("" : "+x"(v)); }
  [[gnu::always_inline]] static void PrefetchNear(const char* p) { _mm_prefetch(p, _MM_HINT_T0); }
  [[gnu::always_inline]] static void PrefetchFar(const char* p) { _mm_prefetch(p, _MM_HINT_T1); }
};

}  // namespace

constinit const VectorKernels kAvx2Kernels = MakeKernels<Avx2Vector>("avx2", kAvx2Quantized);
constinit const VectorKernels kAvxVnniKernels =
    MakeKernels<Avx2Vector>("avxvnni", kAvxVnniQuantized);

}  // namespace lockstep::cpu
