// The vector policy of AVX-512 (F, BW, DQ, VL): 16 lanes, 32 registers, tiles of 12 x 32. Included
// only by files compiled for it.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace lockstep::cpu {
namespace {

struct Avx512Vector {
  static constexpr int kWidth = 16;
  static constexpr int kTileRows = 12;
  static constexpr bool kNativePairs = false;
  using F = __m512;
  using Pairs = __m512i;

  static __m512i Bits(F v) { return _mm512_castps_si512(v); }
  static F FromBits(__m512i v) { return _mm512_castsi512_ps(v); }
  static __mmask16 FirstLanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }

  static F Zero() { return _mm512_setzero_ps(); }
  static F Set(float x) { return _mm512_set1_ps(x); }
  static F Load(const float* p) { return _mm512_loadu_ps(p); }
  static F LoadFirst(const float* p, int n) { return _mm512_maskz_loadu_ps(FirstLanes(n), p); }
  static void Store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static void StoreFirst(float* p, F v, int n) { _mm512_mask_storeu_ps(p, FirstLanes(n), v); }
  static F Widen(__m256i half) {
    return FromBits(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  static F LoadBf16(const uint16_t* p) {
    return Widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F LoadFirstBf16(const uint16_t* p, int n) {
    return Widen(_mm256_maskz_loadu_epi16(FirstLanes(n), p));
  }
  // See PortableVector. Upper and lower bytes apart: numbers below 16 are looked up, the denormals
  // among them.
  static constexpr int kE4m3Step = 64;
  static void WidenE4m3(const uint8_t* src, uint16_t* dst) {
    const __m512i low_digit = _mm512_set1_epi8(0x0f);
    const __m512i upper_of =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c,
                                             0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c));
    const __m512i lower_of = _mm512_broadcast_i32x4(
        _mm_set_epi64x(static_cast<int64_t>(0xf0e0d0c0b0a09080), 0x60402000c0800000));
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);  // halves of lanes unpack so
    const __m512i bytes = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(src));
    const __m512i magnitude = _mm512_and_si512(bytes, _mm512_set1_epi8(0x7f));
    const __mmask64 nan = _mm512_cmpeq_epi8_mask(magnitude, _mm512_set1_epi8(0x7f));
    const __mmask64 is_small = _mm512_cmplt_epi8_mask(magnitude, _mm512_set1_epi8(16));
    __m512i upper = _mm512_and_si512(_mm512_srli_epi16(magnitude, 4), low_digit);
    upper = _mm512_add_epi8(upper, _mm512_set1_epi8(0x3c));
    __m512i lower = _mm512_andnot_si512(low_digit, _mm512_slli_epi16(magnitude, 4));
    upper = _mm512_mask_shuffle_epi8(upper, is_small, upper_of, magnitude);
    lower = _mm512_mask_shuffle_epi8(lower, is_small, lower_of, magnitude);
    upper = _mm512_mask_mov_epi8(upper, nan, _mm512_set1_epi8(0x7f));
    constexpr int kSecondWhereThird = 0xd8;  // has ones; elsewhere the first
    upper = _mm512_ternarylogic_epi64(upper, bytes, _mm512_set1_epi8(static_cast<char>(0x80)),
                                      kSecondWhereThird);
    _mm512_storeu_si512(dst, _mm512_unpacklo_epi8(lower, upper));
    _mm512_storeu_si512(dst + 32, _mm512_unpackhi_epi8(lower, upper));
  }
  static F RoundToBf16(F v) {
    const __m512i bits = Bits(v);
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_and_si512(_mm512_add_epi32(bits, bias), upper);
    const __m512i quiet =
        _mm512_or_si512(_mm512_and_si512(bits, upper), _mm512_set1_epi32(0x00400000));
    return FromBits(
        _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), rounded, quiet));
  }

  static F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm512_div_ps(a, b); }
  static F Max(F a, F b) { return _mm512_max_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F Negate(F a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
  static F Sqrt(F a) { return _mm512_sqrt_ps(a); }
  static F SelectLess(F a, F b, F yes, F no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
  }
  static F SelectNan(F a, F yes, F no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), no, yes);
  }
  static F ScaleByPowerOfTwo(F p, F shifted) {
    return FromBits(_mm512_add_epi32(Bits(p), _mm512_slli_epi32(Bits(shifted), 23)));
  }

  static Pairs LoadPairs(const uint32_t* p) { return _mm512_loadu_si512(p); }
  static F OddOf(Pairs v) {
    return FromBits(_mm512_and_si512(v, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static F EvenOf(Pairs v) { return FromBits(_mm512_slli_epi32(v, 16)); }

  // even, odd elements -> the elements in order
  static void Interleave(F& even, F& odd) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    const F first = _mm512_permutex2var_ps(even, low, odd);
    odd = _mm512_permutex2var_ps(even, high, odd);
    even = first;
  }
  // ((l0 + l1) + (l2 + l3)) + ...
  static float TreeSum(F v) {
    v = _mm512_add_ps(v, _mm512_permute_ps(v, 0xb1));
    v = _mm512_add_ps(v, _mm512_permute_ps(v, 0x4e));
    v = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0xb1));
    v = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0x4e));
    return _mm512_cvtss_f32(v);
  }

  static float TreeMax(F v) { return _mm512_reduce_max_ps(v); }

  static void Transpose(F (&r)[16]) {
    F pair[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
      pair[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
      pair[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    F quad[16];  // quad[4 * h + c]: columns c, c + 4, c + 8, c + 12 of rows 4h .. 4h + 3
#pragma GCC unroll 4
    for (int h = 0; h < 16; h += 4) {
      quad[h] = _mm512_shuffle_ps(pair[h], pair[h + 2], 0x44);
      quad[h + 1] = _mm512_shuffle_ps(pair[h], pair[h + 2], 0xee);
      quad[h + 2] = _mm512_shuffle_ps(pair[h + 1], pair[h + 3], 0x44);
      quad[h + 3] = _mm512_shuffle_ps(pair[h + 1], pair[h + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const F even_low =
          _mm512_shuffle_f32x4(quad[c], quad[4 + c], 0x88);  // columns c, c + 8 of rows 0..7
      const F odd_low = _mm512_shuffle_f32x4(quad[c], quad[4 + c], 0xdd);  // columns c + 4, c + 12
      const F even_high = _mm512_shuffle_f32x4(quad[8 + c], quad[12 + c], 0x88);  // of rows 8..15
      const F odd_high = _mm512_shuffle_f32x4(quad[8 + c], quad[12 + c], 0xdd);
      r[c] = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
      r[c + 8] = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
      r[c + 4] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
      r[c + 12] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
    }
  }
  static void FmaInto(F& sum, F a, F b) { sum = Fma(a, b, sum); }
  static void Pin(F& v) { asm volatile("" : "+v"(v)); }
  [[gnu::always_inline]] static void PrefetchNear(const char* p) { _mm_prefetch(p, _MM_HINT_T0); }
  [[gnu::always_inline]] static void PrefetchFar(const char* p) { _mm_prefetch(p, _MM_HINT_T1); }
};

}  // namespace
}  // namespace lockstep::cpu
