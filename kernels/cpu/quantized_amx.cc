// Quantized kernels for AMX: tdpbsud multiplies 16 rows of 64 signed bytes by 64 rows of 16 bytes
// without sign. Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
#include <immintrin.h>

#include "kernels/cpu/quantized_avx512.h"
#include "kernels/cpu/quantized_tiles.h"

namespace lockstep::cpu {
namespace {

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
