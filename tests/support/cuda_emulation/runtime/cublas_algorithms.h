// The algorithms of the emulated cuBLASLt. For cublas_lt.cc alone.
#pragma once

#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "tests/support/cuda_emulation/runtime/engine.h"
#include "tests/support/cuda_emulation/runtime/matrix_product.h"

namespace lockstep::cuda_emulation {

// What an algorithm is, in the 64 opaque bytes of a cublasLtMatmulAlgo_t.
struct Algorithm {
  uint32_t tag;
  int32_t id;
  int32_t num_splits;
  uint32_t reduction_scheme;
  int32_t lanes;
  uint32_t types;         // of A, B, C and what is transposed, packed
  uint32_t alignment[4];  // promised of A, B, C, D
  uint32_t unused[6];
};
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));
constexpr uint32_t kTag = 0x6c74616c;

struct Strategy {
  int32_t num_splits;
  uint32_t reduction_scheme;
  int32_t lanes;
  int64_t columns_multiple = 1;  // of D: what it needs
  bool runs = true;              // else it is found, passes the check, and is refused all the same
  int64_t most_columns = INT64_MAX;
};
constexpr size_t kWholeTiles = 0;
constexpr size_t kSliced = 7;  // Device::slices_few_columns
constexpr std::array<Strategy, 8> kStrategies = {{
    {1, CUBLASLT_REDUCTION_SCHEME_NONE, 16, /*columns_multiple=*/16},
    {1, CUBLASLT_REDUCTION_SCHEME_NONE, 16},
    {1, CUBLASLT_REDUCTION_SCHEME_NONE, 32},
    {4, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 16},
    {4, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, 16},
    {1, CUBLASLT_REDUCTION_SCHEME_NONE, 8},
    {.num_splits = 1,
     .reduction_scheme = CUBLASLT_REDUCTION_SCHEME_NONE,
     .lanes = 8,
     .runs = false},
    {.num_splits = 1,
     .reduction_scheme = CUBLASLT_REDUCTION_SCHEME_NONE,
     .lanes = 4,
     .most_columns = 64},
}};

inline bool AddsInOutput(uint32_t reduction_scheme) {
  return reduction_scheme == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
}

inline uint32_t PackTypes(const Product& product) {
  return static_cast<uint32_t>(product.a.type) | static_cast<uint32_t>(product.d.type) << 8 |
         static_cast<uint32_t>(product.a.transposed) << 16 |
         static_cast<uint32_t>(product.b.transposed) << 17 |
         static_cast<uint32_t>(product.is_fast) << 18;
}

inline size_t WorkspaceBytes(const Product& product, int num_splits) {
  if (num_splits == 1) return 0;
  return static_cast<size_t>(product.rows() * product.columns() * num_splits) * sizeof(float);
}

inline bool Fits(const Product& product, const Strategy& strategy) {
  return product.columns() % strategy.columns_multiple == 0 &&
         product.columns() <= strategy.most_columns;
}

inline bool Fits(const Product& product, const Algorithm& algorithm) {
  return Fits(product, kStrategies[static_cast<size_t>(algorithm.id)]);
}

inline Algorithm Unpack(const cublasLtMatmulAlgo_t& algo) {
  Algorithm algorithm;
  std::memcpy(&algorithm, &algo, sizeof(algorithm));
  return algorithm;
}

// The column of D from which on columns are added up in another order.
inline int64_t OtherFrom(const Product& product, size_t id) {
  const Device& device = TheEngine().device;
  if (device.wide_columns > 0 && product.columns() >= device.wide_columns) {
    return product.columns() * 3 / 4;
  }
  return device.adds_by_place && id == kWholeTiles ? product.columns() / 2 : INT64_MAX;
}

}  // namespace lockstep::cuda_emulation
