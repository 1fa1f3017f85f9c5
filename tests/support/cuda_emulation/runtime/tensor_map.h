// A tensor map as cuTensorMapEncodeTiled leaves it here.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <cstring>

namespace lockstep::cuda_emulation {

struct TensorMap {
  static constexpr uint64_t kMagic = 0x70616d726f736e74;
  uint64_t magic;
  const char* address;
  std::array<uint64_t, 4> strides;  // of dimensions 1.., bytes
  std::array<uint32_t, 5> dims;     // 0: 2^32
  std::array<uint16_t, 5> box;
  uint8_t rank;
  uint8_t element_bytes;
  bool swizzled;  // 16-byte chunks within 128 bytes
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));

inline TensorMap MapIn(const CUtensorMap& opaque) {
  TensorMap map;
  std::memcpy(&map, opaque.opaque, sizeof(map));
  return map;
}

}  // namespace lockstep::cuda_emulation
