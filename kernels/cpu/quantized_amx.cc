// Quantized kernels for AMX: tdpbsud multiplies 16 rows of 64 signed bytes by 64 rows of 16 bytes
// without sign. Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
#include <immintrin.h>

#include "kernels/cpu/quantized_tiles.h"

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

// What p points at is written: GCC's intrinsics for tiles do not say that they read memory, so that
// stores could come after them or not at all.
inline void Settle(const void* p) { asm volatile("" : : "r"(p) : "memory"); }

// Registers 0 and 1: sums of the panel's halves; 2: rows of x; 3 and 4: weights.
class AmxTiles {
 public:
  AmxTiles(int rows, int group_k) : group_k_(group_k) {
    Shape shape;
    shape.Set(0, rows, 64);
    shape.Set(1, rows, 64);
    shape.Set(2, rows, group_k);
    shape.Set(3, group_k / 4, 64);
    shape.Set(4, group_k / 4, 64);
    Settle(&shape);
    _tile_loadconfig(&shape);
  }
  ~AmxTiles() { _tile_release(); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

  // sums: [rows][32]; x: [rows][group_k]; w: [group_k / 4][32][4].
  void Multiply(const char* x, const char* w, int32_t* sums) const {
    Settle(x);
    Settle(w);
    _tile_zero(0);
    _tile_zero(1);
    _tile_loadd(2, x, group_k_);
    _tile_loadd(3, w, kQuadRowBytes);
    _tile_loadd(4, w + kQuadRowBytes / 2, kQuadRowBytes);
    _tile_dpbsud(0, 2, 3);
    _tile_dpbsud(1, 2, 4);
    _tile_stored(0, sums, kQuadRowBytes);
    _tile_stored(1, sums + kQuantizedColumns / 2, kQuadRowBytes);
  }

 private:
  // As ldtilecfg reads it.
  struct Shape {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
    void Set(int tile, int num_rows, int bytes) {
      rows[tile] = static_cast<uint8_t>(num_rows);
      row_bytes[tile] = static_cast<uint16_t>(bytes);
    }
  };
  static_assert(sizeof(Shape) == 64);

  const int64_t group_k_;
};

}  // namespace

constinit const QuantizedKernels kAmxQuantized = MakeTiledKernels<Avx512Lanes, AmxTiles>("amx");

}  // namespace lockstep::cpu
