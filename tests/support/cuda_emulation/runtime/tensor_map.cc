#include "tests/support/cuda_emulation/runtime/tensor_map.h"

#include <cstring>

#include "tests/support/cuda_emulation/runtime/engine.h"

namespace lockstep::cuda_emulation {

namespace {

int ElementBytes(CUtensorMapDataType type) { return type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1 : 2; }

bool IsMultipleBelow(uint64_t value, uint64_t of, uint64_t end) {
  return value % of == 0 && value < end;
}

// The rules that the reference gives, for maps without interleaving.
bool IsValid(const TensorMap& map, const cuuint64_t* dims, const cuuint32_t* box,
             const cuuint32_t* element_strides) {
  if (reinterpret_cast<uintptr_t>(map.address) % 16 != 0) return false;
  for (int i = 0; i < map.rank; ++i) {
    if (dims[i] == 0 || dims[i] > uint64_t{1} << 32) return false;
    if (box[i] == 0 || box[i] > 256 || element_strides[i] != 1) return false;
    if (i > 0 && !IsMultipleBelow(map.strides[i - 1], 16, uint64_t{1} << 40)) return false;
  }
  const uint32_t row_bytes = box[0] * map.element_bytes;
  return row_bytes % 16 == 0 && (!map.swizzled || row_bytes <= 128);
}

}  // namespace

}  // namespace lockstep::cuda_emulation

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                void* address, const cuuint64_t* dims, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* element_strides,
                                CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  using namespace lockstep::cuda_emulation;
  if (map == nullptr || reinterpret_cast<uintptr_t>(map) % 64 != 0) return CUDA_ERROR_INVALID_VALUE;
  if (rank == 0 || rank > 5) return CUDA_ERROR_INVALID_VALUE;
  TensorMap made = {};
  made.magic = TensorMap::kMagic;
  made.address = static_cast<const char*>(address);
  made.rank = static_cast<uint8_t>(rank);
  made.element_bytes = static_cast<uint8_t>(ElementBytes(type));
  made.swizzled = swizzle == CU_TENSOR_MAP_SWIZZLE_128B;
  for (cuuint32_t i = 0; i + 1 < rank; ++i) made.strides[i] = strides[i];
  if (!IsValid(made, dims, box, element_strides)) return CUDA_ERROR_INVALID_VALUE;
  for (cuuint32_t i = 0; i < rank; ++i) {
    made.dims[i] = static_cast<uint32_t>(dims[i]);
    made.box[i] = static_cast<uint16_t>(box[i]);
  }
  std::memset(map->opaque, 0, sizeof(map->opaque));
  std::memcpy(map->opaque, &made, sizeof(made));
  return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  using namespace lockstep::cuda_emulation;
  return Call([&](auto&) {
    const bool known =
        TheEngine().device.has_tensor_maps && std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
    *function = known ? reinterpret_cast<void*>(&cuTensorMapEncodeTiled) : nullptr;
    if (found != nullptr) {
      *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    }
    return cudaSuccess;
  });
}
