// Quantized kernels for AVX2, whose vpmaddubsw adds two products of unsigned by signed bytes with
// saturation at 16 bits. Nothing saturates: 8-bit weights go in as magnitudes with their sign moved
// to x (2 x 128 x 127 < 2^15), 4-bit ones are at most 15, so that a whole group of 32 still fits
// (8 x 2 x 15 x 127 < 2^15).
#include <immintrin.h>

#include "kernels/cpu/quantize_groups.h"
#include "kernels/cpu/quantized_kernels.h"
#include "kernels/cpu/quantized_vector256.h"

namespace lockstep::cpu {
namespace {

struct Avx2Quantized : QuantizedVector256 {
  static constexpr int kTileRows = 4;
  static constexpr int kKeptRows = 0;
  static constexpr int kTwoChainRows = 4;

  static I AddPairs(I words) { return _mm256_madd_epi16(words, _mm256_set1_epi16(1)); }

  template <bool kInt4>
  struct Dot;
};

template <>
struct Avx2Quantized::Dot<false> {
  using Sum = I;      // 32 bits
  using Weights = I;  // with sign
  static Sum Start(int32_t) { return _mm256_setzero_si256(); }
  static void Load(const char* p, Weights& first, Weights& second) {
    const I zero = _mm256_set1_epi8(static_cast<char>(128));
    first = _mm256_xor_si256(LoadBytes(p), zero);
    second = _mm256_xor_si256(LoadBytes(p + kQuantizedColumns * 4), zero);
  }
  static void Add(Sum& sum, Weights weights, I quad) {
    const I words = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(quad, weights));
    sum = _mm256_add_epi32(sum, AddPairs(words));
  }
  static I Finish(Sum sum, int32_t) { return sum; }
};

template <>
struct Avx2Quantized::Dot<true> {
  using Sum = I;      // 16 bits
  using Weights = I;  // 0 to 15
  static Sum Start(int32_t) { return _mm256_setzero_si256(); }
  static void Load(const char* p, Weights& first, Weights& second) {
    const I low = _mm256_set1_epi8(15);
    const I bytes = LoadBytes(p);
    first = _mm256_and_si256(bytes, low);
    second = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low);
  }
  static void Add(Sum& sum, Weights weights, I quad) {
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(weights, quad));
  }
  static I Finish(Sum sum, int32_t offset) {
    return _mm256_add_epi32(AddPairs(sum), _mm256_set1_epi32(offset));
  }
};

}  // namespace

constinit const QuantizedKernels kAvx2Quantized = MakeQuantizedKernels<Avx2Quantized>("avx2");

}  // namespace lockstep::cpu
