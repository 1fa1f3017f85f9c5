// Attention over the paged cache: which kernels walk it.
#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/cuda/attention_f32.cuh"
#include "kernels/cuda/attention_merge.cuh"
#include "kernels/cuda/attention_mma.cuh"
#include "kernels/cuda/attention_wgmma.h"
#include "kernels/cuda/kernels.h"

namespace lockstep::cuda {
namespace {

bool TokensAreSequences(const BatchIndex& batch) {
  return batch.max_query_len == 1 && batch.num_tokens == batch.num_seqs;
}

// All but the tokens of a launch and its workspace.
AttentionParams ParamsOf(const Backend::AttentionArgs& args, const AttentionPlan& plan,
                         DType out_dtype) {
  const BatchIndex& batch = *args.batch;
  const KvCacheView& cache = *args.cache;
  AttentionParams p = {};
  p.qkv = args.qkv;
  p.qkv_dtype = args.qkv_dtype;
  p.out = args.out;
  p.out_dtype = out_dtype;
  p.k = cache.k;
  p.v = cache.v;
  p.positions = batch.positions;
  p.query_starts = batch.query_starts;
  p.context_lens = batch.context_lens;
  p.block_tables = batch.block_tables;
  p.num_tokens = static_cast<int>(batch.num_tokens);
  p.num_seqs = static_cast<int>(batch.num_seqs);
  p.tokens_are_sequences = TokensAreSequences(batch);
  p.max_blocks_per_seq = batch.max_blocks_per_seq;
  p.num_heads = args.num_heads;
  p.num_kv_heads = cache.num_kv_heads;
  p.group = args.num_heads / cache.num_kv_heads;
  p.by_group = Divisor(p.group);
  p.head_dim = cache.head_dim;
  p.block_size = cache.block_size;
  p.by_block_size = Divisor(p.block_size);
  p.scale_log2 = static_cast<float>(args.scale * 1.4426950408889634);
  p.split_tokens = static_cast<int>(plan.split_tokens);
  p.max_splits = static_cast<int>(plan.max_splits);
  return p;
}

void CheckArgs(const Backend::AttentionArgs& args, const AttentionPlan& plan) {
  const KvCacheView& cache = *args.cache;
  LS_CHECK(AttentionSupports(cache.dtype, cache.head_dim))
      << DTypeName(cache.dtype) << " cache of head size " << cache.head_dim;
  LS_CHECK(args.num_heads % cache.num_kv_heads == 0) << args.num_heads;
  LS_CHECK(args.scale > 0.0f) << args.scale;
  LS_CHECK(args.qkv_dtype != DType::kF16);
  LS_CHECK(plan.split_tokens > 0 && plan.split_tokens % kAttentionTile == 0) << plan.split_tokens;
  LS_CHECK(cache.num_blocks * cache.num_kv_heads * cache.block_size <= int64_t{UINT32_MAX})
      << "cache of " << cache.num_blocks << " blocks";  // rows are counted in 32 bits
  for (const void* address : {cache.k, cache.v, args.out, static_cast<void*>(nullptr)}) {
    LS_CHECK(reinterpret_cast<uintptr_t>(address) % 16 == 0) << address;
  }
  LS_CHECK(reinterpret_cast<uintptr_t>(args.qkv) % 16 == 0) << args.qkv;
}

bool IsDecode(const Backend::AttentionArgs& args) { return args.batch->max_query_len == 1; }

// Of a launch.
int64_t NumRows(const AttentionParams& p) {
  return int64_t{p.end_token - p.first_token} * p.num_heads;
}

// Tiles as FindRowTile numbers them, of all tokens.
int64_t NumRowTiles(const AttentionParams& p, int rows) {
  if (p.tokens_are_sequences) return int64_t{p.num_seqs} * CeilDiv(p.group, rows);
  return int64_t{p.num_tokens} * p.group / rows + p.num_seqs;
}

template <typename Shape, int kBytes = Shape::kSharedBytes>
cudaError_t LaunchMma(const AttentionParams& p, const KernelStream& stream) {
  const auto kernel = AttentionMmaKernel<Shape>;
  if (kBytes >= 48 * 1024) {  // with what the system keeps of a block's memory
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (error != cudaSuccess) return error;
  }
  const dim3 grid(static_cast<unsigned>(NumRowTiles(p, Shape::kRows)),
                  static_cast<unsigned>(p.num_kv_heads), static_cast<unsigned>(p.max_splits));
  return LaunchOverlapping(kernel, grid, Shape::kThreads, kBytes, stream, p);
}

template <typename T, int kDim, int kColumnWarps>
cudaError_t LaunchMmaOfDim(const AttentionParams& p, bool decode, const KernelStream& stream) {
  using Decode = MmaShape<T, kDim, 1, 1, kColumnWarps, 3, 3>;
  using Prefill = MmaShape<T, kDim, 2, 4, 1, 2, 2>;
  static_assert(Prefill::kRows == kAttentionChunkRows);
  // Of few sequences, on many multiprocessors. Less shared memory: it begins beside kernels that
  // hold much of it.
  if (decode && p.split_tokens == kAttentionTile) {
    using OneTile = MmaShape<T, kDim, 1, 1, kColumnWarps, 2, 3>;
    static_assert(OneTile::kKeepsQueries);
    return LaunchMma<OneTile, OneTile::kOneTileSharedBytes>(p, stream);
  }
  return decode ? LaunchMma<Decode>(p, stream) : LaunchMma<Prefill>(p, stream);
}

template <typename T>
cudaError_t LaunchMmaOfType(const AttentionParams& p, bool decode, const KernelStream& stream) {
  if (p.head_dim <= 32) return LaunchMmaOfDim<T, 32, 2>(p, decode, stream);
  if (p.head_dim <= 64) return LaunchMmaOfDim<T, 64, 4>(p, decode, stream);
  return LaunchMmaOfDim<T, 128, 4>(p, decode, stream);
}

cudaError_t LaunchSplits(const AttentionParams& p, const Backend::AttentionArgs& args,
                         TensorMapEncoder encode_maps, const KernelStream& stream) {
  const bool decode = IsDecode(args);
  if (args.cache->dtype == DType::kF32) {
    const dim3 grid(static_cast<unsigned>(CeilDiv<int64_t>(NumRows(p), kF32Warps)), 1,
                    static_cast<unsigned>(p.max_splits));
    return Launch(AttentionF32Kernel, grid, kF32Warps * kWarpSize, 0, stream, p);
  }
  if (!decode && encode_maps != nullptr && WgmmaAttentionSupports(*args.cache)) {
    const int64_t row_tiles = NumRowTiles(p, kAttentionChunkRows);
    return LaunchAttentionWgmma(p, *args.cache, row_tiles, encode_maps, stream);
  }
  return args.cache->dtype == DType::kF16 ? LaunchMmaOfType<F16>(p, decode, stream)
                                          : LaunchMmaOfType<BF16>(p, decode, stream);
}

template <int kElements>
cudaError_t LaunchMerge(const AttentionParams& p, bool decode, const KernelStream& stream) {
  const int64_t blocks = decode ? NumRows(p) : CeilDiv<int64_t>(NumRows(p), kMergeWarps);
  const auto kernel = decode ? MergeByBlocksKernel<kElements> : MergeByWarpsKernel<kElements>;
  return LaunchOverlapping(kernel, static_cast<unsigned>(blocks), kMergeWarps * kWarpSize, 0,
                           stream, p);
}

// The tokens of one launch.
cudaError_t LaunchTokens(const AttentionParams& p, const Backend::AttentionArgs& args,
                         TensorMapEncoder encode_maps, const KernelStream& stream) {
  const bool decode = IsDecode(args);
  const cudaError_t error = LaunchSplits(p, args, encode_maps, stream);
  if (error != cudaSuccess || p.max_splits == 1) return error;
  if (p.head_dim <= kMaxHeadDim / 2) {
    return LaunchMerge<kMaxHeadDim / 2 / kWarpSize>(p, decode, stream);
  }
  return LaunchMerge<kMaxHeadDim / kWarpSize>(p, decode, stream);
}

}  // namespace

bool AttentionSupports(DType kv_dtype, int head_dim) {
  if (head_dim <= 0) return false;
  if (kv_dtype == DType::kF32) return head_dim % 2 == 0 && head_dim <= kMaxHeadDim;
  return head_dim % 8 == 0 && head_dim <= 128;
}

cudaError_t LaunchAttention(const Backend::AttentionArgs& args, const AttentionPlan& plan,
                            DType out_dtype, const AttentionWorkspace& workspace,
                            const KernelStream& stream) {
  CheckArgs(args, plan);
  const int64_t num_tokens = args.batch->num_tokens;
  const AttentionHeads heads = {args.num_heads, args.cache->num_kv_heads, args.cache->head_dim};
  const int64_t at_once =
      AttentionTokensAtOnce(plan, num_tokens, heads, IsDecode(args), workspace.bytes);
  LS_CHECK(at_once > 0 || num_tokens == 0)
      << workspace.bytes << " bytes are not enough for a token's splits";

  AttentionParams p = ParamsOf(args, plan, out_dtype);
  p.failed_waits = workspace.failed_waits;
  p.partial_values = static_cast<float*>(workspace.data);
  p.partial_stats = reinterpret_cast<float2*>(p.partial_values + at_once * args.num_heads *
                                                                     plan.max_splits * p.head_dim);
  for (int64_t first = 0; first < num_tokens; first += at_once) {
    p.first_token = static_cast<int>(first);
    p.end_token = static_cast<int>(std::min(first + at_once, num_tokens));
    const cudaError_t error = LaunchTokens(p, args, plan.encode_maps, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace lockstep::cuda
