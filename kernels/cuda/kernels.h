// The CUDA kernels as functions that launch them: what they compute is written at their
// arguments (kernels/backend_args.h); additions may be in another order than there.
//
// All work is issued to `stream` and needs no synchronisation with the host, so that every launch
// can be captured in a CUDA graph. Nothing is allocated. What takes a KernelStream overlaps where
// that says so. `out_dtype` is kF32, kBF16 or kF16 (rounded to nearest even); products are read as
// kF32 or kBF16. Errors: what the launch returned.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/backend_args.h"
#include "kernels/batch_index.h"
#include "kernels/cuda/attention_heads.h"
#include "kernels/cuda/attention_layout.h"
#include "kernels/cuda/kernel_stream.h"
#include "kernels/cuda/workspaces.h"
#include "kernels/dtype.h"
#include "kernels/kv_block_copies.h"
#include "kernels/kv_cache_view.h"
#include "kernels/logits_summary.h"
#include "kernels/token_choice.h"

namespace lockstep::cuda {

// Overlaps nothing: most steps begin with it.
cudaError_t LaunchEmbed(const EmbedArgs& args, const KernelStream& stream);
cudaError_t LaunchAddRmsNorm(const RmsNormArgs& args, DType out_dtype, const KernelStream& stream);
cudaError_t LaunchSiluMul(const SiluMulArgs& args, DType out_dtype, const KernelStream& stream);
// Keys and values both lie as [num_blocks, num_kv_heads, block_size, head_dim]. A slot below 0 is
// not written: the padding of a captured batch.
cudaError_t LaunchRopeAndWriteKv(const RopeArgs& args, const KernelStream& stream);
cudaError_t LaunchGatherRows(const void* in, const int32_t* rows, int64_t num_rows,
                             int64_t row_bytes, void* out, cudaStream_t stream);
// out[i] = in[i] of another dtype; out is aligned to its own elements alone.
cudaError_t LaunchConvert(const void* in, DType in_dtype, int64_t count, DType out_dtype, void* out,
                          cudaStream_t stream);
cudaError_t LaunchAdd(float* dst, const void* src, DType src_dtype, int64_t count,
                      cudaStream_t stream);
// Between steps: none of its kernels overlaps it.
cudaError_t LaunchWriteBlockTables(const PlacedBlock* blocks, int64_t count, int32_t* block_tables,
                                   cudaStream_t stream);
// To memory of cudaHostAlloc and from there, by at most so many thread blocks at once: few run
// beside other kernels.
cudaError_t LaunchOffloadKv(const KvBlockCopies& copies, int most_thread_blocks,
                            cudaStream_t stream);
cudaError_t LaunchRestoreKv(const KvBlockCopies& copies, int most_thread_blocks,
                            cudaStream_t stream);
cudaError_t LaunchSummarizeLogits(const LogitsSummaryArgs& args, cudaStream_t stream);
cudaError_t LaunchChooseTokens(const TokenChoiceArgs& args, cudaStream_t stream);
// The second part of the same: rows that are undecided and may go on.
cudaError_t LaunchChooseFromWholeRows(const TokenChoiceArgs& args, cudaStream_t stream);
cudaError_t LaunchTakeChosenTokens(const ChosenToken* chosen, const int32_t* sources,
                                   int64_t num_tokens, int32_t* ids, cudaStream_t stream);
cudaError_t LaunchPlaceChosenTokens(const ChosenToken* chosen, const int32_t* places, int64_t count,
                                    ChosenToken* table, cudaStream_t stream);

inline constexpr float kLargestE4m3 = 448.0f;
// Rows in e4m3 with a scale to each, as LaunchQuantizeFp8 makes them.
struct E4m3Rows {
  uint8_t* q = nullptr;     // [num_rows, width]
  float* scales = nullptr;  // [num_rows]
  // While they are made, the most that a scale is: a 448th of the bound on amax. (The bits are
  // those of bounding amax itself, which takes kernels more registers.)
  float most_scale = kNoActivationBound / kLargestE4m3;

  // For a product by a weight of that LinearShape::activation_bound.
  E4m3Rows Bounded(float activation_bound) const {
    return {q, scales, activation_bound / kLargestE4m3};
  }
};
// Each row of x [num_rows, width] of x_dtype in e4m3: q[i] = x[i] / scale rounded to nearest even,
// beyond 448 to 448, scale = min(amax / 448, out.most_scale). A row of zeros has scale 0, one with
// NaN scale NaN, as has one with an infinity unless most_scale is finite; they have zeros for q.
cudaError_t LaunchQuantizeFp8(const void* x, DType x_dtype, int64_t num_rows, int64_t width,
                              const E4m3Rows& out, const KernelStream& stream);

// In one piece of memory (E4m3RowsBytes), the scales behind the numbers. width is a multiple of 16,
// so that scales are aligned and both take no more memory than rows of 16 bits.
inline E4m3Rows E4m3RowsIn(void* memory, int64_t num_rows, int64_t width) {
  auto* const q = static_cast<uint8_t*>(memory);
  return {q, reinterpret_cast<float*>(q + num_rows * width)};
}
// What LaunchAddRmsNorm and LaunchSiluMul write as `rounded_to`, after LaunchQuantizeFp8: the same
// bits, without the way through memory. args.out is not used; rows as aligned as it would be.
cudaError_t LaunchAddRmsNormFp8(const RmsNormArgs& args, DType rounded_to, const E4m3Rows& out,
                                const KernelStream& stream);
cudaError_t LaunchSiluMulFp8(const SiluMulArgs& args, DType rounded_to, const E4m3Rows& out,
                             const KernelStream& stream);
// Rows of kF32 or kBF16.
struct ProductRows {
  void* data = nullptr;  // [num_rows, num_columns]
  DType dtype = DType::kF32;
  int64_t num_rows = 0;
  int64_t num_columns = 0;
};
// y[row, column] *= row_scales[row] * column_scales[column].
cudaError_t LaunchScaleRowsAndColumns(const ProductRows& y, const float* row_scales,
                                      const float* column_scales, const KernelStream& stream);

// What Hopper's copy engine needs of the driver.
using TensorMapEncoder = decltype(&cuTensorMapEncodeTiled);
// Null where the device is not of compute capability 9.0 or the driver is too old.
TensorMapEncoder FindTensorMapEncoder(const cudaDeviceProp& device);

// Bf16 and f16 caches with heads of 64 or 128 and blocks of 8, 16, 32 or 64 tokens.
bool WgmmaAttentionSupports(const KvCacheView& cache);
// Was the kernel for such caches and heads compiled as it counts on? Otherwise it must not be
// launched.
bool WgmmaAttentionIsSound(DType kv_dtype, int head_dim);
struct AttentionWorkspace {
  void* data = nullptr;  // aligned to 16 bytes
  int64_t bytes = 0;
  // Set to 1 by a wgmma kernel that waits in vain within itself, whose results are then worthless.
  // Null: such a kernel ends with an error.
  uint32_t* failed_waits = nullptr;
};
// Loads the kernels that LaunchAttention may choose for such caches, which CUDA else does when each
// is first used: when a step is recorded, or serves.
cudaError_t LoadAttention(DType kv_dtype, DType out_dtype, int head_dim);
// What AttentionWork has laid out for args.batch, with the same workspace. Sequences whose
// context_lens is 0 are skipped and their rows of out left alone. qkv, out and the cache are
// aligned to 16 bytes. What is read of an e4m3 cache is multiplied as f16 where out_dtype is that,
// else as bf16. encode_maps not null: chunks are worked on by wgmma, where
// WgmmaAttentionSupports the cache; results differ from the other kernel's in rounding.
cudaError_t LaunchAttention(const AttentionArgs& args, DType out_dtype,
                            const AttentionWorkspace& workspace, TensorMapEncoder encode_maps,
                            const KernelStream& stream);

}  // namespace lockstep::cuda
