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
// of additions is part of this contract and is written at each kernel.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/attention_batch.h"
#include "kernels/batch_index.h"
#include "kernels/device_memory.h"
#include "kernels/dtype.h"
#include "kernels/linear_weight.h"

namespace lockstep {

struct LogitsSummaryArgs;  // kernels/logits_summary.h
struct ChosenToken;        // kernels/token_choice.h, like the next
struct TokenChoiceArgs;

// Device memory, owned. Aligned to at least 64 bytes, zero-filled at allocation.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(std::shared_ptr<void> memory, int64_t bytes)
      : memory_(std::move(memory)), bytes_(bytes) {}
  DeviceBuffer(DeviceBuffer&&) = default;
  DeviceBuffer& operator=(DeviceBuffer&&) = default;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  void* data() const { return memory_.get(); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(memory_.get());
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<void> memory_;  // shared_ptr<void> for its type-erased deleter; never shared
  int64_t bytes_ = 0;
};

// Memory for weights that is not the backend's own: the next region of so many bytes, aligned to at
// least 64, zero-filled or holding what a weight of that shape held before.
using WeightAllocator = std::function<absl::StatusOr<DeviceBuffer>(int64_t bytes)>;

// One layer's share of the paged KV cache on this rank.
// v: [num_blocks, num_kv_heads, block_size, head_dim], dtype kF32, kBF16 or, where
// Backend::HoldsF16, kF16 (rounded to nearest when written). k: as many elements; how they lie
// within a head's block is the backend's own. The CPU bodies transpose them so that a vector runs
// over its tokens: f32 [head_dim, block_size], the others [head_dim / 2, block_size, 2]; head_dim
// is even.
struct KvCacheView {
  void* k = nullptr;
  void* v = nullptr;
  DType dtype = DType::kF32;
  int64_t num_blocks = 0;
  int num_kv_heads = 0;
  int block_size = 0;  // tokens
  int head_dim = 0;
};

// What tells repeated steps apart.
struct StepKey {
  StepKey(uint64_t of_shape, uint64_t of_form = 0) : shape(of_shape), form(of_form) {}
  uint64_t shape;
  uint64_t form;
  auto operator<=>(const StepKey&) const = default;
};

// A place in the work issued to a backend, for the host to wait for.
class WorkMark {
 public:
  virtual ~WorkMark() = default;
  virtual void Set() = 0;        // behind what has been issued so far
  virtual bool IsReached() = 0;  // also before the first Set
  virtual void WaitUntilReached() = 0;
};

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

  // ---- kernels ----
  // out[i, :] = table[ids[i] - first_id, :], or zeros when ids[i] is outside [first_id, first_id +
  // num_rows). table: [num_rows, hidden] of table_dtype (kF32, kBF16, or kF16 where HoldsF16);
  // ids: [num_tokens] int32 on the device; out: f32, in which zeros have no sign, so that adding
  // the zeros of ranks that do not have a row changes no bit.
  struct EmbedArgs {
    const void* table;
    DType table_dtype;
    int64_t num_rows;
    int64_t first_id;
    int64_t hidden;
    const int32_t* ids;
    int64_t num_tokens;
    float* out;
  };
  virtual void Embed(const EmbedArgs& args) = 0;

  // residual += delta (when delta is not null; of delta_dtype), then out = residual /
  // sqrt(mean(residual^2) + eps)
  // * weight. residual, delta, out: [num_tokens, hidden]; weight: f32 [hidden]. The sum of squares
  // runs in 16 lanes (lane = index mod 16, fused multiply-add, ascending), lanes then added as a
  // binary tree of neighbours; with scale = 1 / sqrt(sum / hidden + eps), out = (residual * scale)
  // * weight.
  struct RmsNormArgs {
    float* residual;
    const void* delta;
    const float* weight;
    float eps;
    int64_t num_tokens;
    int64_t hidden;
    void* out;  // of LinearInput()
    // The weight that reads out, where nobody else does: the next product (Linear or RoundedLinear)
    // is by it and takes all of out, once, and out is not touched in between. How out lies there
    // until then is the backend's own matter (it may quantize rows as that product would), and no
    // bit of the product depends on it. Null: out is as said, for whoever reads it.
    const LinearWeight* consumer = nullptr;
    // Where these are some of the rows that the consumer reads, and the others are brought from
    // other ranks (RowsToGather): out has room for out_rows, of which these are written from
    // first_out_row on. How rows lie is the same wherever consumers are weights of one shape and
    // out_rows is the same. 0: out has these rows alone.
    int64_t out_rows = 0;
    int64_t first_out_row = 0;
    DType delta_dtype = DType::kF32;  // or what ProductDType has named
  };
  virtual void AddRmsNorm(const RmsNormArgs& args) = 0;

  // Where the rows are that AddRmsNorm last wrote to out: row i in row_bytes at data + i *
  // row_bytes of each array; an array without bytes is none.
  struct RowArray {
    void* data = nullptr;
    int64_t row_bytes = 0;
  };
  virtual std::array<RowArray, 2> RowsToGather(void* out, int64_t hidden) const {
    return {{{out, hidden * DTypeBytes(LinearInput())}}};
  }

  // y = x W^T; x [num_tokens, in_features] of LinearInput(), y [num_tokens, out_features] f32. bf16
  // weights: x is rounded to bf16 first (to nearest even). Within one K-slice each output element
  // accumulates in f32 with fused multiply-add in one order: f32 weights k = 0, 1, 2, ...; bf16
  // weights in pairs, odd element then even: k = 1, 0, 3, 2, ... (the order of the vdpbf16ps
  // instruction, Intel SDM vol. 2), a missing last odd element of a slice counting as zero;
  // denormal inputs and results of that accumulation are flushed to zero. Slices are combined as
  // LinearShape says, with ordinary additions (ranks go on adding where this stops).
  //
  // Quantized weights: x is quantized by QuantizeActivationGroup, per token and per group of the
  // weight (kernels/quantization.h). A group's dot product of both q is an integer, exact below
  // 2^24, hence of no order; within a K-slice, from 0 and over groups ascending,
  //   sum = fma(float(dot), x_scale * w_scale, sum)
  // without flushing denormals. A token with a number that is not finite in a group gets NaN in
  // every output; a group of weights likewise in its output.
  virtual void Linear(const LinearWeight& weight, const void* x, int64_t num_tokens, float* y) = 0;

  // The same, y being of ProductDType(num_tokens), for the kernels that are told of it: AddRmsNorm,
  // SiluMul, RopeAndWriteKv, Attention and Add.
  virtual void RoundedLinear(const LinearWeight& weight, const void* x, int64_t num_tokens,
                             void* y) {
    Linear(weight, x, num_tokens, static_cast<float*>(y));
  }

  // out[t, i] = silu(gate_up[t, i]) * gate_up[t, width + i]; silu(x) = x / (1 + Exp(0 - x)), Exp
  // being the one of kernels/cpu/exp.h.
  struct SiluMulArgs {
    const void* gate_up;  // [num_tokens, 2 * width]
    int64_t num_tokens;
    int64_t width;
    void* out;                               // [num_tokens, width] of LinearInput()
    const LinearWeight* consumer = nullptr;  // as RmsNormArgs has it
    DType gate_up_dtype = DType::kF32;       // or what ProductDType has named
  };
  virtual void SiluMul(const SiluMulArgs& args) = 0;

  // Rotates q in place and k, which may be left as it was in qkv (GPT-NeoX halves: i pairs with i +
  // head_dim / 2, as Hugging Face checkpoints have it), and writes k and v to the cache at
  // slot_mapping: first' = fma(first, cos, -(second * sin)), second' = fma(second, cos, first *
  // sin). qkv: [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], q heads then k heads then v
  // heads, of qkv_dtype, to which rotated q is rounded. cos, sin: f32 [max_positions, head_dim /
  // 2].
  struct RopeArgs {
    void* qkv;
    int num_heads;
    const float* cos;
    const float* sin;
    const BatchIndex* batch;
    const KvCacheView* cache;
    DType qkv_dtype = DType::kF32;  // or what ProductDType has named
  };
  virtual void RopeAndWriteKv(const RopeArgs& args) = 0;

  // Causal attention of every token over its sequence's cached positions 0..positions[t]; GQA:
  // query head h reads KV head h / (num_heads / num_kv_heads). qkv as above (q already rotated);
  // out: [num_tokens, num_heads * head_dim]. The context is walked in splits of kAttentionSplit
  // tokens counted from position 0: each split gives (max, sum, weighted values), splits are merged
  // in ascending order (FlashAttention's online softmax, Dao 2022, section 3). In order, with Exp
  // of kernels/cpu/exp.h:
  //   score_j  = sum over d of (q_d * scale) * k_jd
  //   weight_j = Exp(score_j - max of the split's scores)
  //   sum      = the weights in 16 lanes (lane = j mod 16, ascending), then a binary tree of
  //              neighbours
  //   value_d  = sum over j of weight_j * v_jd
  //   merge    : m = max(max_a, max_b), a = Exp(max_a - m), b = Exp(max_b - m),
  //              sum = fma(sum_b, b, sum_a * a), value_d = fma(value_b, b, value_a * a)
  //   out_d    = value_d * (1 / sum)
  // Scores and values are added up with fused multiply-add from 0: over f32 caches d and j
  // ascending; over bf16 caches as Linear multiplies bf16 weights: q_d * scale and, for value_d,
  // weight_j are rounded to bf16 first, pairs (of j within the split) add the odd element, then the
  // even, a missing last odd one counting as zero, and denormals are flushed.
  static constexpr int kAttentionSplit = 128;
  struct AttentionArgs {
    const void* qkv;
    int num_heads;
    float scale;
    const BatchIndex* batch;
    const KvCacheView* cache;
    void* out;                      // of LinearInput()
    DType qkv_dtype = DType::kF32;  // or what ProductDType has named
  };
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

// Plain loops, one thread: what every other body is tested against.
std::unique_ptr<Backend> MakeReferenceBackend();

struct CpuBackendOptions {
  int num_threads = 1;
  // Highest instruction set to use: "auto", "scalar", "avx2", "avxvnni", "avx512",
  // "avx512vnni", "avx512bf16".
  // INVALID_ARGUMENT when unknown or not available on this processor.
  std::string isa = "auto";
};
absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const CpuBackendOptions& options);

}  // namespace lockstep
