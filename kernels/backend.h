// The contract between the model and the hardware: memory, weights and the handful of kernels a
// Llama needs.
//
// Bodies: ReferenceBackend (plain loops, the specification), CpuBackend (SIMD, threads); a CUDA
// body loads as a plugin. All pointers are device pointers of this backend; work is issued in order
// from one thread (the step loop) and may be asynchronous until Synchronize(). Activations are f32,
// row-major and dense, except those that nothing but Linear reads, which have the dtype that
// LinearInput names, and what RoundedLinear leaves.
//
// Numbers. On the CPU bodies every output row depends on its own inputs only: bit for bit the same
// whatever the number of rows in the call, the number of threads and the instruction set. The order
// of additions is part of this contract and is written at each kernel's arguments
// (kernels/backend_args.h) and, of products, at LinearWeight.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/attention_batch.h"
#include "kernels/backend_args.h"
#include "kernels/batch_index.h"
#include "kernels/device_buffer.h"
#include "kernels/device_memory.h"
#include "kernels/dtype.h"
#include "kernels/kv_block_copies.h"
#include "kernels/kv_cache_view.h"
#include "kernels/linear_weight.h"
#include "kernels/step_work.h"

namespace lockstep {

struct LogitsSummaryArgs;  // kernels/logits_summary.h
struct ChosenToken;        // kernels/token_choice.h, like the next
struct TokenChoiceArgs;

class Backend {
 public:
  virtual ~Backend() = default;
  // For the start-up log: "cpu avx2, 4 threads".
  virtual std::string Description() const = 0;
  // Of what AddRmsNorm, SiluMul and Attention write and Linear reads: kF32 on CPU bodies, elsewhere
  // what the products multiply, kBF16 or kF16, too.
  virtual DType LinearInput() const = 0;
  // Of what RoundedLinear writes for so many tokens: kF32 on CPU bodies, elsewhere perhaps kBF16.
  virtual DType ProductDType(int64_t /*num_tokens*/) const { return DType::kF32; }
  // Whether weights, embedding tables and KV caches may be in f16: where products multiply it.
  bool HoldsF16() const { return LinearInput() == DType::kF16; }
  // Whether a weight of this shape can be kept in Quantization::kFp8.
  virtual bool HoldsFp8(int64_t /*out_features*/, int64_t /*in_features*/) const { return false; }
  // Whether there is attention over caches of this shape, whose memory may be null:
  // INVALID_ARGUMENT says over which there is.
  virtual absl::Status CheckKvCache(const KvCacheView& /*cache*/) const { return absl::OkStatus(); }

  // ---- memory ----
  virtual absl::StatusOr<DeviceBuffer> Allocate(
      int64_t bytes) = 0;  // RESOURCE_EXHAUSTED when it cannot
  virtual void CopyToDevice(void* device, const void* host, int64_t bytes) = 0;
  virtual void CopyToHost(void* host, const void* device, int64_t bytes) = 0;  // complete on return
  virtual void Synchronize() = 0;
  // That may still be taken; of a device that others use, too, as of now.
  virtual int64_t AvailableBytes() const = 0;
  virtual DeviceMemory Memory() const { return {}; }
  // Host memory that copies to and from the device reach fast. RESOURCE_EXHAUSTED when it cannot.
  virtual absl::StatusOr<DeviceBuffer> AllocateOnHost(int64_t bytes) = 0;

  // ---- weights ----
  // INVALID_ARGUMENT for shapes the backend cannot hold; RESOURCE_EXHAUSTED when memory is short.
  virtual absl::StatusOr<std::unique_ptr<LinearWeight>> AllocateLinear(
      const LinearShape& shape) = 0;
  // Converts and packs rows [first_row, first_row + rows.num_rows). Thread-safe over disjoint rows;
  // called from loader threads before the first Linear().
  virtual void FillLinear(LinearWeight& weight, int64_t first_row, const HostRows& rows) = 0;
  // The same of a table of numbers, row-major and dense: `table` is where the first of the rows
  // goes, [rows.num_rows, width] of dtype; rows hold kValues.
  virtual void FillTable(void* table, DType dtype, int64_t width, const HostRows& rows) = 0;
  // Whether rows that are pinned go to the device without another pass through the host's memory,
  // so that files are to be read there; marks may then be set by loader threads.
  virtual bool TakesPinnedRows() const { return false; }
  // Names how weights are packed: where it is the same, so are the bytes of equal weights. Empty:
  // they lie where no other process can use them.
  virtual std::string WeightLayout() const = 0;
  // Until it is called with null, Allocate and AllocateLinear take their memory from there. Not for
  // backends without a layout's name.
  virtual void PlaceWeights(WeightAllocator allocator) = 0;
  // Of the device's memory, what products by quantized weights need for such inputs, quantized. 0
  // on CPU bodies: the host's memory grows with what comes.
  virtual int64_t ProductBytes(const ProductInputs& /*inputs*/) const { return 0; }
  // Takes so many for good, before there are products that need them: those take none.
  // RESOURCE_EXHAUSTED when it cannot.
  virtual absl::Status ReserveForProducts(int64_t /*bytes*/) { return absl::OkStatus(); }

  // ---- kernels: kernels/backend_args.h says what they compute ----
  virtual void Embed(const EmbedArgs& args) = 0;
  virtual void AddRmsNorm(const RmsNormArgs& args) = 0;
  // Where the rows are that AddRmsNorm last wrote to out.
  virtual std::array<RowArray, 2> RowsToGather(void* out, int64_t hidden) const {
    return {{{out, hidden * DTypeBytes(LinearInput())}}};
  }

  // y = x W^T; x [num_tokens, in_features] of LinearInput(), y [num_tokens, out_features] f32.
  // LinearWeight has the order of its additions.
  virtual void Linear(const LinearWeight& weight, const void* x, int64_t num_tokens, float* y) = 0;

  // The same, y being of ProductDType(num_tokens), for the kernels that are told of it: AddRmsNorm,
  // SiluMul, RopeAndWriteKv, Attention and Add.
  virtual void RoundedLinear(const LinearWeight& weight, const void* x, int64_t num_tokens,
                             void* y) {
    Linear(weight, x, num_tokens, static_cast<float*>(y));
  }

  virtual void SiluMul(const SiluMulArgs& args) = 0;
  virtual void RopeAndWriteKv(const RopeArgs& args) = 0;
  virtual void Attention(const AttentionArgs& args) = 0;
  // Of a batch that Attention will be called for, over caches like `cache`: what its BatchIndex is
  // to have beside the arrays. Valid until the next call.
  virtual AttentionLayout LayOutAttention(const AttentionBatch& /*batch*/, int /*num_heads*/,
                                          const KvCacheView& /*cache*/) {
    return {};
  }
  // Takes the host memory of that for batches of up to so many tokens, sequences and tokens of
  // context. Its bytes, at most.
  virtual int64_t ReserveAttentionWork(const AttentionLimits& /*limits*/, int /*num_heads*/,
                                       const KvCacheView& /*cache*/) {
    return 0;
  }
  // block_tables[blocks[i].place] = blocks[i].block; [count], all on the device. A place that comes
  // twice has the same block.
  virtual void WriteBlockTables(const PlacedBlock* blocks, int64_t count,
                                int32_t* block_tables) = 0;

  // ---- blocks of a KV cache that are kept in the host's memory, too ----
  // To the host, after all that was issued before, and perhaps beside what is issued later, until
  // AwaitOffloads: nothing may write to those blocks, or read or write what the host has of them,
  // before that.
  virtual void OffloadKv(const KvBlockCopies& copies) = 0;
  // What is issued from now on begins when all blocks offloaded so far are there.
  virtual void AwaitOffloads() = 0;
  // Back to the device, in the order of what is issued.
  virtual void RestoreKv(const KvBlockCopies& copies) = 0;
  // The same after all that was issued before, and perhaps beside what is issued later, until
  // AwaitPrefetches: nothing may read or write those blocks, or write what the host has of them,
  // before that.
  virtual void PrefetchKv(const KvBlockCopies& copies) = 0;
  // What is issued from now on begins when all blocks prefetched so far are there.
  virtual void AwaitPrefetches() = 0;

  // ---- rows ----
  // out[i, :] = in[rows[i], :], rows of row_bytes, an even number, of any dtype; rows: [num_rows]
  // int32 on the device. in and out do not overlap.
  virtual void GatherRows(const void* in, const int32_t* rows, int64_t num_rows, int64_t row_bytes,
                          void* out) = 0;
  // dst[i] += src[i]; src_dtype: kF32, or what ProductDType has named.
  virtual void Add(float* dst, const void* src, DType src_dtype, int64_t count) = 0;

  // ---- choosing tokens where logits lie ----
  // Whether the rest may be called: where the host had to fetch the logits to read them.
  virtual bool SummarizesLogits() const = 0;
  virtual void SummarizeLogits(const LogitsSummaryArgs& args) = 0;
  virtual void ChooseTokens(const TokenChoiceArgs& args) = 0;
  // ids[i] = chosen[sources[i]].token where sources[i] >= 0; [num_tokens], all on the device.
  virtual void TakeChosenTokens(const ChosenToken* chosen, const int32_t* sources,
                                int64_t num_tokens, int32_t* ids) = 0;
  // table[places[i]] = chosen[i]; [count], all on the device, no place twice.
  virtual void PlaceChosenTokens(const ChosenToken* chosen, const int32_t* places, int64_t count,
                                 ChosenToken* table) = 0;
  // Into memory of AllocateOnHost, without waiting: complete when a mark that was set later is
  // reached.
  virtual void StartCopyToHost(void* host, const void* device, int64_t bytes) = 0;
  // Must not outlive the backend. RESOURCE_EXHAUSTED, UNAVAILABLE.
  virtual absl::StatusOr<std::unique_ptr<WorkMark>> MakeMark() = 0;

  // ---- steps ----
  // What is issued from now on is a step's: nothing of it begins before all that was issued earlier
  // is done, and its kernels may count on that (kernels/cuda/kernel_stream.h). Called by the body
  // of a step that repeats, too.
  virtual void BeginStep() = 0;
  // Calls body, which issues kernels and collectives that are the same, to their addresses and
  // sizes, whenever key is: a backend may keep what was issued and issue it at once another time,
  // without calling body. The calls must copy nothing to the host and wait for nothing. What body
  // returned.
  virtual absl::Status Repeat(const StepKey& key, const std::function<absl::Status()>& body) = 0;
  // Keeps such a step, if it does that at all, without running it. One of its size has run before.
  virtual absl::Status Keep(const StepKey& key, const std::function<absl::Status()>& body) = 0;
  // Whether it does; if not, nobody need make steps alike.
  virtual bool KeepsSteps() const = 0;
  // Keys are new ones again, and no rows wait for their consumer any more: to be called when
  // addresses or groups that steps use are about to end.
  virtual void ForgetSteps() = 0;
};

}  // namespace lockstep
