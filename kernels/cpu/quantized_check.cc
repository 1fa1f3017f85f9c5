#include "kernels/cpu/quantized_check.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace lockstep::cpu {
namespace {

constexpr int kGroups = 3;

// Numbers without a pattern that products could hide in (Knuth's multiplicative hashing).
uint32_t Scatter(uint32_t i) { return (i + 1) * 2654435761u >> 8; }

std::vector<float> Product(const QuantizedKernels& kernels, int bits, int rows, int group) {
  const auto padded = static_cast<int>(PaddedGroup(group));
  const int zero = bits == 8 ? 128 : 8;
  const int64_t group_bytes = QuantizedGroupBytes(padded, bits);
  std::vector<char> panel(static_cast<size_t>(kGroups * group_bytes));
  for (size_t i = 0; i < panel.size(); ++i) {
    panel[i] = static_cast<char>(Scatter(static_cast<uint32_t>(i)));
    const auto at = static_cast<int64_t>(i) % group_bytes;
    if (at < kQuantizedScaleBytes && at % 2 == 1) panel[i] = 0x3c;  // scales near 0.01
  }
  std::vector<float> x(static_cast<size_t>(rows * group));
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(Scatter(static_cast<uint32_t>(i)) % 2001) - 1000.0f;
  }
  std::vector<float> c(static_cast<size_t>(rows * kQuantizedColumns));
  std::vector<char> tile;
  for (int row = 0; row < rows; row += kernels.tile_rows) {
    const int tile_rows = std::min(kernels.tile_rows, rows - row);
    const int64_t tile_group_bytes = QuantizedRowBytes(padded) * tile_rows;
    tile.resize(static_cast<size_t>(kGroups * tile_group_bytes));
    for (int g = 0; g < kGroups; ++g) {
      kernels.quantize_rows(x.data() + row * group, group, tile_rows, group, zero,
                            tile.data() + g * tile_group_bytes);
    }
    QuantizedBlock block = {};
    block.rows = tile.data();
    block.tile_rows = tile_rows;
    block.num_rows = tile_rows;
    block.panel = panel.data();
    block.num_groups = kGroups;
    block.group_k = padded;
    block.c = c.data() + row * kQuantizedColumns;
    block.fresh = true;
    (bits == 8 ? kernels.gemm_int8 : kernels.gemm_int4)(block);
  }
  return c;
}

}  // namespace

bool MultiplyAlike(const QuantizedKernels& a, const QuantizedKernels& b) {
  for (const int bits : {8, 4}) {
    const int whole = bits == 8 ? 64 : 32;
    for (const int rows : {1, a.tile_rows, b.tile_rows}) {
      for (const int group : {whole, 13}) {
        const std::vector<float> mine = Product(a, bits, rows, group);
        const std::vector<float> theirs = Product(b, bits, rows, group);
        if (std::memcmp(mine.data(), theirs.data(), mine.size() * sizeof(float)) != 0) return false;
      }
    }
  }
  return true;
}

}  // namespace lockstep::cpu
