// Dot products of bytes by vpdpbusd (VNNI), unsigned weights by signed x, over vectors of either
// width: the weights go in as they lie, and the sum starts from the row's offset
// (quantized_table.h).
#pragma once

#include <cstdint>

#include "kernels/cpu/quantized_table.h"

namespace lockstep::cpu {
namespace {

template <class P, bool kInt4>
struct VnniDot {
  using Sum = typename P::I;
  using Weights = typename P::I;
  static Sum Start(int32_t offset) { return P::SetInteger(offset); }
  static void Load(const char* p, Weights& first, Weights& second) {
    const Weights bytes = P::LoadBytes(p);
    if constexpr (kInt4) {
      first = P::LowHalves(bytes);
      second = P::HighHalves(bytes);
    } else {
      first = bytes;
      second = P::LoadBytes(p + kQuantizedColumns * 4);
    }
  }
  static void Add(Sum& sum, Weights weights, typename P::I quad) {
    P::AddQuads(sum, weights, quad);
  }
  static typename P::I Finish(Sum sum, int32_t) { return sum; }
};

}  // namespace
}  // namespace lockstep::cpu
