// The vector operations of the quantized kernels over AVX-512, for instruction sets that bring
// their own products.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace lockstep::cpu {
namespace {

struct Avx512Lanes {
  static constexpr int kLanes = 16;
  using F = __m512;
  using I = __m512i;

  static F Zero() { return _mm512_setzero_ps(); }
  static F Set(float x) { return _mm512_set1_ps(x); }
  static F Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F ToFloat(I v) { return _mm512_cvtepi32_ps(v); }
  static I AddIntegers(I a, I b) { return _mm512_add_epi32(a, b); }
  static I SetInteger(int32_t value) { return _mm512_set1_epi32(value); }
  static F WidenScales(const char* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  static I LoadBytes(const char* p) { return _mm512_loadu_si512(p); }
  static void StoreBytes(char* p, I v) { _mm512_storeu_si512(p, v); }
  static I LowHalves(I bytes) { return _mm512_and_si512(bytes, _mm512_set1_epi32(0x0f0f0f0f)); }
  static I HighHalves(I bytes) { return LowHalves(_mm512_srli_epi32(bytes, 4)); }
  [[gnu::always_inline]] static void Prefetch(const char* p) { _mm_prefetch(p, _MM_HINT_T0); }
  [[gnu::always_inline]] static void PrefetchPassing(const char* p) {
    _mm_prefetch(p, _MM_HINT_NTA);
  }
};

}  // namespace
}  // namespace lockstep::cpu
