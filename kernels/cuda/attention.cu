// Attention over the paged cache: which kernels walk it.
#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/cuda/attention_f32.cuh"
#include "kernels/cuda/attention_merge.cuh"
#include "kernels/cuda/attention_mma.cuh"
#include "kernels/cuda/attention_wgmma.h"
#include "kernels/cuda/e4m3_kv_tiles.cuh"
#include "kernels/cuda/kernels.h"

namespace lockstep::cuda {
namespace {

static_assert(AttentionSupports(DType::kF32, kMaxHeadDim) &&
              !AttentionSupports(DType::kF32, kMaxHeadDim + 2));

// All but what is of one launch.
AttentionParams ParamsOf(const AttentionArgs& args, const AttentionForm& form, DType out_dtype,
                         const AttentionWorkspace& workspace) {
  const KvCacheView& cache = *args.cache;
  const AttentionHeads heads = {args.num_heads, cache.num_kv_heads, cache.head_dim};
  AttentionParams p = {};
  p.qkv = args.qkv;
  p.qkv_dtype = args.qkv_dtype;
  p.out = args.out;
  p.out_dtype = out_dtype;
  p.k = cache.k;
  p.v = cache.v;
  p.block_tables = args.batch->block_tables;
  p.num_heads = args.num_heads;
  p.num_kv_heads = cache.num_kv_heads;
  p.group = args.num_heads / cache.num_kv_heads;
  p.by_group = Divisor(p.group);
  p.head_dim = cache.head_dim;
  p.block_size = cache.block_size;
  p.by_block_size = Divisor(p.block_size);
  p.scale_log2 = static_cast<float>(args.scale * cache.k_scale * 1.4426950408889634);
  p.value_scale = cache.v_scale;
  p.partial_rows = form.PartialRows(heads);
  p.partial_values = static_cast<float*>(workspace.data);
  p.partial_stats =
      reinterpret_cast<float2*>(p.partial_values + AttentionPartialRows(heads, workspace.bytes) *
                                                       p.num_kv_heads * p.head_dim);
  p.failed_waits = workspace.failed_waits;
  return p;
}

void SetLaunch(const std::byte* work, const AttentionForm& form, AttentionParams& p) {
  p.header = reinterpret_cast<const AttentionHeader*>(work);
  p.items = reinterpret_cast<const AttentionItem*>(p.header + 1);
  p.merges = p.items + form.items;
}

void CheckArgs(const AttentionArgs& args) {
  const KvCacheView& cache = *args.cache;
  LS_CHECK(AttentionSupports(cache.dtype, cache.head_dim))
      << DTypeName(cache.dtype) << " cache of head size " << cache.head_dim;
  LS_CHECK(args.num_heads % cache.num_kv_heads == 0) << args.num_heads;
  LS_CHECK(args.scale > 0.0f) << args.scale;
  LS_CHECK(args.qkv_dtype != DType::kF16);
  LS_CHECK(cache.num_blocks * cache.num_kv_heads * cache.block_size <= int64_t{UINT32_MAX})
      << "cache of " << cache.num_blocks << " blocks";  // rows are counted in 32 bits
  for (const void* address : {cache.k, cache.v, args.out, static_cast<void*>(nullptr)}) {
    LS_CHECK(reinterpret_cast<uintptr_t>(address) % 16 == 0) << address;
  }
  LS_CHECK(reinterpret_cast<uintptr_t>(args.qkv) % 16 == 0) << args.qkv;
  LS_CHECK(args.batch->num_tokens * args.num_heads <= INT32_MAX) << args.batch->num_tokens;
  LS_CHECK(args.batch->attention_work != nullptr) << "nobody has laid out the batch";
  LS_CHECK(reinterpret_cast<uintptr_t>(args.batch->attention_work) % sizeof(AttentionItem) == 0)
      << static_cast<const void*>(args.batch->attention_work);
}

template <typename... Kernels>
cudaError_t LoadKernels(Kernels... kernels) {
  cudaError_t error = cudaSuccess;
  const auto load = [&](auto kernel) {
    cudaFuncAttributes attributes = {};
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
  };
  (load(kernels), ...);
  return error;
}

dim3 BlocksFor(int items, const AttentionParams& p) {
  return dim3(static_cast<unsigned>(items), static_cast<unsigned>(p.num_kv_heads));
}

template <typename Shape, bool kSeveral, int kBytes = Shape::kSharedBytes>
cudaError_t LaunchMma(const AttentionParams& p, const AttentionForm& form,
                      const KernelStream& stream) {
  static_assert(Shape::kRows == kAttentionDecodeRows || Shape::kRows == kAttentionChunkRows);
  const auto kernel = AttentionMmaKernel<Shape, kSeveral>;
  if (kBytes >= 48 * 1024) {  // with what the system keeps of a block's memory
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (error != cudaSuccess) return error;
  }
  return LaunchOverlapping(kernel, BlocksFor(form.items, p), Shape::kThreads, kBytes, stream, p);
}

// Over caches of T.
template <typename T, int kDim, int kColumnWarps>
struct MmaShapes {
  template <int kStages>
  using Few = MmaShape<T, kDim, 1, 1, kColumnWarps, 3, KvTiles<kDim, kColumnWarps, kStages>>;

  using Prefill = MmaShape<T, kDim, 2, 4, 1, 2, KvTiles<kDim, 4, 2>>;
  using Decode = Few<3>;
  // Of few sequences, on many multiprocessors. Less shared memory: it begins beside kernels that
  // hold much of it.
  using OneTile = Few<2>;
  static_assert(OneTile::kKeepsQueries);

  static cudaError_t Launch(const AttentionParams& p, const AttentionForm& form,
                            const KernelStream& stream) {
    if (form.tile_rows == Prefill::kRows) return LaunchSplits<Prefill>(p, form, stream);
    LS_CHECK_EQ(form.tile_rows, Decode::kRows);
    if (form.one_tile) {
      return LaunchMma<OneTile, false, OneTile::kOneTileSharedBytes>(p, form, stream);
    }
    return LaunchSplits<Decode>(p, form, stream);
  }
  template <typename Shape>
  static cudaError_t LaunchSplits(const AttentionParams& p, const AttentionForm& form,
                                  const KernelStream& stream) {
    return form.several_splits ? LaunchMma<Shape, true>(p, form, stream)
                               : LaunchMma<Shape, false>(p, form, stream);
  }
  static cudaError_t Load() {
    return LoadKernels(AttentionMmaKernel<Prefill, false>, AttentionMmaKernel<Prefill, true>,
                       AttentionMmaKernel<Decode, false>, AttentionMmaKernel<Decode, true>,
                       AttentionMmaKernel<OneTile, false>);
  }
};

// Over e4m3 caches. Two kernels do for all splits: those that walk several cost one split two reads
// of what the host has laid out, and decodes' take no more shared memory than for one tile.
template <typename T, int kDim, int kColumnWarps>
struct E4m3Shapes {
  using Prefill = MmaShape<T, kDim, 2, 4, 1, 2, E4m3KvTiles<T, kDim, 4, false>>;
  using Decode = MmaShape<T, kDim, 1, 1, kColumnWarps, 3, E4m3KvTiles<T, kDim, kColumnWarps, true>>;
  static_assert(Decode::kSharedBytes == Decode::kOneTileSharedBytes);

  static cudaError_t Launch(const AttentionParams& p, const AttentionForm& form,
                            const KernelStream& stream) {
    if (form.tile_rows == Prefill::kRows) return LaunchMma<Prefill, true>(p, form, stream);
    LS_CHECK_EQ(form.tile_rows, Decode::kRows);
    return LaunchMma<Decode, true>(p, form, stream);
  }
  static cudaError_t Load() {
    return LoadKernels(AttentionMmaKernel<Prefill, true>, AttentionMmaKernel<Decode, true>);
  }
};

// body(the shapes for heads of head_dim).
template <template <typename, int, int> typename Shapes, typename T, typename Body>
cudaError_t WithShapes(int head_dim, const Body& body) {
  if (head_dim <= 32) return body(Shapes<T, 32, 2>());
  if (head_dim <= 64) return body(Shapes<T, 64, 4>());
  return body(Shapes<T, 128, 4>());
}
// What is multiplied over e4m3 caches is what attention writes for: f16, or else bf16.
template <typename Body>
cudaError_t WithShapes(DType kv_dtype, DType out_dtype, int head_dim, const Body& body) {
  if (kv_dtype == DType::kE4M3) {
    return out_dtype == DType::kF16 ? WithShapes<E4m3Shapes, F16>(head_dim, body)
                                    : WithShapes<E4m3Shapes, BF16>(head_dim, body);
  }
  return kv_dtype == DType::kF16 ? WithShapes<MmaShapes, F16>(head_dim, body)
                                 : WithShapes<MmaShapes, BF16>(head_dim, body);
}

cudaError_t LaunchSplits(const AttentionParams& p, const KvCacheView& cache,
                         const AttentionForm& form, TensorMapEncoder encode_maps,
                         const KernelStream& stream) {
  const dim3 blocks = BlocksFor(form.items, p);
  if (cache.dtype == DType::kF32) {
    return Launch(AttentionF32Kernel, blocks, kF32Warps * kWarpSize, 0, stream, p);
  }
  if (form.tile_rows == kAttentionChunkRows && encode_maps != nullptr &&
      WgmmaAttentionSupports(cache)) {
    return LaunchAttentionWgmma(p, cache, blocks, encode_maps, stream);
  }
  return WithShapes(cache.dtype, p.out_dtype, p.head_dim,
                    [&](auto shapes) { return decltype(shapes)::Launch(p, form, stream); });
}

// Few rows have a block each, the many of chunks a warp.
template <int kElements>
cudaError_t LaunchMerge(const AttentionParams& p, const AttentionForm& form,
                        const KernelStream& stream) {
  const bool by_blocks = form.decode || form.tile_rows < kMergeWarps;
  const auto kernel = by_blocks ? MergeByBlocksKernel<kElements> : MergeByWarpsKernel<kElements>;
  dim3 blocks = BlocksFor(form.merges, p);
  blocks.z = static_cast<unsigned>(by_blocks ? p.partial_rows : p.partial_rows / kMergeWarps);
  return LaunchOverlapping(kernel, blocks, kMergeWarps * kWarpSize, 0, stream, p);
}

}  // namespace

cudaError_t LoadAttention(DType kv_dtype, DType out_dtype, int head_dim) {
  constexpr int kFew = kMaxHeadDim / 2 / kWarpSize;
  constexpr int kMany = kMaxHeadDim / kWarpSize;
  const cudaError_t error = LoadKernels(MergeByBlocksKernel<kFew>, MergeByWarpsKernel<kFew>,
                                        MergeByBlocksKernel<kMany>, MergeByWarpsKernel<kMany>);
  if (error != cudaSuccess) return error;
  if (kv_dtype == DType::kF32) return LoadKernels(AttentionF32Kernel);
  return WithShapes(kv_dtype, out_dtype, head_dim,
                    [](auto shapes) { return decltype(shapes)::Load(); });
}

cudaError_t LaunchAttention(const AttentionArgs& args, DType out_dtype,
                            const AttentionWorkspace& workspace, TensorMapEncoder encode_maps,
                            const KernelStream& stream) {
  CheckArgs(args);
  const AttentionForm form = AttentionForm::Unpacked(args.batch->attention_form);
  AttentionParams p = ParamsOf(args, form, out_dtype, workspace);
  for (int launch = 0; launch < form.launches; ++launch) {
    SetLaunch(args.batch->attention_work + launch * form.LaunchBytes(), form, p);
    cudaError_t error = LaunchSplits(p, *args.cache, form, encode_maps, stream);
    if (error == cudaSuccess && form.merges > 0) {
      error = p.head_dim <= kMaxHeadDim / 2
                  ? LaunchMerge<kMaxHeadDim / 2 / kWarpSize>(p, form, stream)
                  : LaunchMerge<kMaxHeadDim / kWarpSize>(p, form, stream);
    }
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace lockstep::cuda
