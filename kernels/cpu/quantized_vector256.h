// What the quantized kernels of 256-bit vectors share, whichever way they multiply bytes.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace lockstep::cpu {
namespace {

struct QuantizedVector256 {
  static constexpr int kLanes = 8;
  using F = __m256;
  using I = __m256i;

  static F Zero() { return _mm256_setzero_ps(); }
  static F Set(float x) { return _mm256_set1_ps(x); }
  static F Load(const float* p) { return _mm256_loadu_ps(p); }
  static void Store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F ToFloat(I v) { return _mm256_cvtepi32_ps(v); }
  static I AddIntegers(I a, I b) { return _mm256_add_epi32(a, b); }
  static F WidenScales(const char* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  static I BroadcastQuad(const char* p) {
    int32_t quad;
    __builtin_memcpy(&quad, p, 4);
    return _mm256_set1_epi32(quad);
  }
  static I LoadBytes(const char* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  [[gnu::always_inline]] static void Prefetch(const char* p) { _mm_prefetch(p, _MM_HINT_T0); }
  [[gnu::always_inline]] static void PrefetchPassing(const char* p) {
    _mm_prefetch(p, _MM_HINT_NTA);
  }
};

}  // namespace
}  // namespace lockstep::cpu
