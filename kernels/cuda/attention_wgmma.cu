#include "kernels/cuda/attention_wgmma.h"

#include "kernels/cuda/attention_wgmma.cuh"

namespace lockstep::cuda {
namespace {

// Keys or values as [head_dim, block_size, blocks of all heads]: a block of one head, or 64 columns
// of it, is a box.
bool MapCache(const KvCacheView& cache, void* side, TensorMapEncoder encode, CUtensorMap* map) {
  const auto row_bytes = static_cast<cuuint64_t>(cache.head_dim * DTypeBytes(cache.dtype));
  const auto block_size = static_cast<cuuint64_t>(cache.block_size);
  const cuuint64_t dims[] = {static_cast<cuuint64_t>(cache.head_dim), block_size,
                             static_cast<cuuint64_t>(cache.num_blocks * cache.num_kv_heads)};
  const cuuint64_t strides[] = {row_bytes, row_bytes * block_size};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(block_size), 1};
  const cuuint32_t steps[] = {1, 1, 1};
  const auto type = cache.dtype == DType::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                               : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return encode(map, type, 3, side, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <typename T, int kDim>
cudaError_t LaunchOfDim(const AttentionParams& p, const CUtensorMap& keys,
                        const CUtensorMap& values, dim3 blocks, cudaStream_t stream) {
  constexpr int kBytes = WgmmaShared<T, kDim>::kBytes;
  const auto kernel = AttentionWgmmaKernel<T, kDim>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  return Launch(kernel, blocks, kWgmmaThreads, kBytes, stream, p, keys, values);
}

// Every thread begins with the registers that are shared out later.
template <typename T, int kDim>
bool IsSound() {
  cudaFuncAttributes attributes = {};
  return cudaFuncGetAttributes(&attributes, AttentionWgmmaKernel<T, kDim>) == cudaSuccess &&
         attributes.numRegs == kEntryRegisters;
}

}  // namespace

bool WgmmaAttentionIsSound(DType kv_dtype, int head_dim) {
  if (kv_dtype == DType::kF16) return head_dim == 64 ? IsSound<F16, 64>() : IsSound<F16, 128>();
  return head_dim == 64 ? IsSound<BF16, 64>() : IsSound<BF16, 128>();
}

TensorMapEncoder FindTensorMapEncoder(const cudaDeviceProp& device) {
  if (device.major != 9 || device.minor != 0) return nullptr;
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if defined(CUDART_VERSION) && CUDART_VERSION < 12050
  const cudaError_t error =
      cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#else
  constexpr unsigned kSince = 12000;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                             kSince, cudaEnableDefault, &result);
#endif
  if (error == cudaSuccess && result == cudaDriverEntryPointSuccess) {
    return reinterpret_cast<TensorMapEncoder>(found);
  }
  cudaGetLastError();  // nobody shall hear of it later
  return nullptr;
}

bool WgmmaAttentionSupports(const KvCacheView& cache) {
  const int block = cache.block_size;
  const bool is_multiplied = cache.dtype == DType::kBF16 || cache.dtype == DType::kF16;
  return is_multiplied && (cache.head_dim == 64 || cache.head_dim == 128) &&
         (block == 8 || block == 16 || block == 32 || block == 64) &&
         cache.num_blocks * cache.num_kv_heads <= INT32_MAX;
}

cudaError_t LaunchAttentionWgmma(const AttentionParams& p, const KvCacheView& cache, dim3 blocks,
                                 TensorMapEncoder encode_maps, cudaStream_t stream) {
  CUtensorMap keys;
  CUtensorMap values;
  if (!MapCache(cache, cache.k, encode_maps, &keys) ||
      !MapCache(cache, cache.v, encode_maps, &values)) {
    return cudaErrorInvalidValue;
  }
  const bool short_heads = cache.head_dim == 64;
  if (cache.dtype == DType::kF16) {
    return short_heads ? LaunchOfDim<F16, 64>(p, keys, values, blocks, stream)
                       : LaunchOfDim<F16, 128>(p, keys, values, blocks, stream);
  }
  return short_heads ? LaunchOfDim<BF16, 64>(p, keys, values, blocks, stream)
                     : LaunchOfDim<BF16, 128>(p, keys, values, blocks, stream);
}

}  // namespace lockstep::cuda
