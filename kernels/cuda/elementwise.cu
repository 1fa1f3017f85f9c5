// Everything of a layer that is neither a product nor attention. All of it is bound by memory: a
// few operations to a byte, so each tensor is read once and written once, by accesses of 16 bytes,
// and the limit is the bandwidth (or, for the few rows of a decode, the latency of a launch).
//
// Bytes to an element, f32 activations and 16-bit products' inputs: Embed 2 + 4; AddRmsNorm 8 read
// (residual, delta), 6 written; SiluMul 8 read, 2 written; RopeAndWriteKv 8 (q) and 4 + 2 (k, v;
// over e4m3 caches 4 + 1); GatherRows twice its own; Add 12; Convert, of weights as they are
// loaded, what it reads and writes. Of products that are rounded 2 instead of 4. AddRmsNorm and
// SiluMul for products in e4m3, which write 1 instead of 2, are in fused_fp8.cu.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/rms_norm.cuh"
#include "kernels/cuda/rope.cuh"
#include "kernels/cuda/silu.cuh"
#include "kernels/cuda/vectors.cuh"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 256;

// A block of the grid for a row and a stretch of its columns; column strides over what is left.
dim3 RowsGrid(int64_t num_rows, int64_t vectors_per_row) {
  constexpr int64_t kMaxStretches = 65535;  // of a grid's second dimension
  return dim3(
      static_cast<unsigned>(num_rows),
      static_cast<unsigned>(std::min(CeilDiv<int64_t>(vectors_per_row, kThreads), kMaxStretches)));
}
__device__ int64_t FirstColumn(int n) { return (int64_t{blockIdx.y} * kThreads + threadIdx.x) * n; }
__device__ int64_t ColumnStride(int n) { return int64_t{gridDim.y} * kThreads * n; }

template <int n, typename T>
__global__ void __launch_bounds__(kThreads) EmbedKernel(EmbedArgs args) {
  const int64_t token = blockIdx.x;
  const int64_t row = args.ids[token] - args.first_id;
  const bool here = row >= 0 && row < args.num_rows;
  for (int64_t i = FirstColumn(n); i < args.hidden; i += ColumnStride(n)) {
    Floats<n> x = {};
    if (here) x = Load<n>(static_cast<const T*>(args.table) + row * args.hidden + i);
#pragma unroll
    for (int e = 0; e < n; ++e) x.of[e] += 0.0f;  // -0 + 0 = 0
    Store(args.out + token * args.hidden + i, x);
  }
}

template <int n, typename G, typename T>
__global__ void __launch_bounds__(kThreads) SiluMulKernel(const G* gate_up, int64_t width, T* out) {
  LetLaterKernelsBegin();
  WaitForEarlierKernels();
  const int64_t token = blockIdx.x;
  const G* gates = gate_up + token * 2 * width;
  for (int64_t i = FirstColumn(n); i < width; i += ColumnStride(n)) {
    Store(out + token * width + i, Gated(Load<n>(gates + i), Load<n>(gates + width + i)));
  }
}

// Word: what rows are moved in, `width` of them to a row.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    GatherRowsKernel(const Word* in, const int32_t* rows, int64_t width, Word* out) {
  const int64_t row = rows[blockIdx.x];
  for (int64_t i = FirstColumn(1); i < width; i += ColumnStride(1)) {
    out[blockIdx.x * width + i] = in[row * width + i];
  }
}

template <int n, typename From, typename To>
__global__ void __launch_bounds__(kThreads) ConvertKernel(const From* in, int64_t count, To* out) {
  for (int64_t i = FirstColumn(n); i < count; i += ColumnStride(n)) Store(out + i, Load<n>(in + i));
}

template <int n, typename G>
__global__ void __launch_bounds__(kThreads) AddKernel(float* dst, const G* src, int64_t count) {
  for (int64_t i = FirstColumn(n); i < count; i += ColumnStride(n)) {
    Floats<n> x = Load<n>(dst + i);
    const Floats<n> addend = Load<n>(src + i);
#pragma unroll
    for (int e = 0; e < n; ++e) x.of[e] += addend.of[e];
    Store(dst + i, x);
  }
}

__global__ void __launch_bounds__(kThreads)
    WriteBlockTablesKernel(const PlacedBlock* blocks, int64_t count, int32_t* block_tables) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) block_tables[blocks[i].place] = blocks[i].block;
}

}  // namespace

cudaError_t LaunchEmbed(const EmbedArgs& args, const KernelStream& stream) {
  if (args.num_tokens == 0) return cudaSuccess;
  return WithVectors(Vectorises(args.hidden, {args.table, args.out}), [&](auto n) {
    return WithType(args.table_dtype, [&](auto element) {
      return Launch(EmbedKernel<n, decltype(element)>, RowsGrid(args.num_tokens, args.hidden / n),
                    kThreads, 0, stream, args);
    });
  });
}

cudaError_t LaunchAddRmsNorm(const RmsNormArgs& args, DType out_dtype, const KernelStream& stream) {
  if (args.num_tokens == 0) return cudaSuccess;
  const void* delta = args.delta;  // null is as aligned as can be
  const bool vectorises = Vectorises(args.hidden, {args.residual, delta, args.weight, args.out});
  return WithVectors(vectorises, [&](auto n) {
    return WithProductType(args.delta_dtype, [&](auto addend) {
      return WithType(out_dtype, [&](auto element) {
        return LaunchOverlapping(AddRmsNormKernel<n, decltype(addend), decltype(element)>,
                                 static_cast<unsigned>(args.num_tokens),
                                 RowThreads(args.hidden / n), 0, stream, args);
      });
    });
  });
}

cudaError_t LaunchSiluMul(const SiluMulArgs& args, DType out_dtype, const KernelStream& stream) {
  if (args.num_tokens == 0) return cudaSuccess;
  return WithVectors(Vectorises(args.width, {args.gate_up, args.out}), [&](auto n) {
    return WithProductType(args.gate_up_dtype, [&](auto gate) {
      return WithType(out_dtype, [&](auto element) {
        using G = decltype(gate);
        using T = decltype(element);
        return LaunchOverlapping(SiluMulKernel<n, G, T>, RowsGrid(args.num_tokens, args.width / n),
                                 kThreads, 0, stream, static_cast<const G*>(args.gate_up),
                                 args.width, static_cast<T*>(args.out));
      });
    });
  });
}

cudaError_t LaunchRopeAndWriteKv(const RopeArgs& args, const KernelStream& stream) {
  if (args.batch->num_tokens == 0) return cudaSuccess;
  const KvCacheView& cache = *args.cache;
  const HeadAdjustments& adjust = args.adjust;
  const int64_t num_heads = int64_t{args.num_heads} + 2 * cache.num_kv_heads;
  const bool vectorises = Vectorises(
      cache.head_dim / 2,
      {args.qkv, args.cos, args.sin, cache.k, cache.v, adjust.bias, adjust.q_norm, adjust.k_norm});
  const auto grid = [&](int64_t blocks) {
    return dim3(static_cast<unsigned>(args.batch->num_tokens), static_cast<unsigned>(blocks));
  };
  return WithVectors(vectorises, [&](auto n) {
    return WithProductType(args.qkv_dtype, [&](auto product) {
      return WithCacheType(cache.dtype, [&](auto element) {
        using G = decltype(product);
        using T = decltype(element);
        const int32_t* const positions = args.batch->positions;
        const int64_t* const slots = args.batch->slot_mapping;
        if (adjust.any()) {
          const dim3 blocks = grid(CeilDiv<int64_t>(num_heads, kRopeThreads / kWarpSize));
          return LaunchOverlapping(AdjustRopeAndWriteKvKernel<n, G, T>, blocks, kRopeThreads, 0,
                                   stream, static_cast<G*>(args.qkv), adjust, args.num_heads,
                                   args.cos, args.sin, positions, slots, cache);
        }
        const int64_t vectors = num_heads * (cache.head_dim / 2 / n);
        return LaunchOverlapping(RopeAndWriteKvKernel<n, G, T>,
                                 grid(CeilDiv<int64_t>(vectors, kRopeThreads)), kRopeThreads, 0,
                                 stream, static_cast<G*>(args.qkv), args.num_heads, args.cos,
                                 args.sin, positions, slots, cache);
      });
    });
  });
}

cudaError_t LaunchGatherRows(const void* in, const int32_t* rows, int64_t num_rows,
                             int64_t row_bytes, void* out, cudaStream_t stream) {
  if (num_rows == 0) return cudaSuccess;
  const auto gather = [&](auto word) {
    using Word = decltype(word);
    const auto width = row_bytes / static_cast<int64_t>(sizeof(Word));
    return Launch(GatherRowsKernel<Word>, RowsGrid(num_rows, width), kThreads, 0, stream,
                  static_cast<const Word*>(in), rows, width, static_cast<Word*>(out));
  };
  if (row_bytes % static_cast<int64_t>(sizeof(uint4)) == 0 && Vectorises(0, {in, out})) {
    return gather(uint4{});
  }
  return gather(uint16_t{});
}

cudaError_t LaunchConvert(const void* in, DType in_dtype, int64_t count, DType out_dtype, void* out,
                          cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return WithVectors(Vectorises(count, {in, out}), [&](auto n) {
    return WithType(in_dtype, [&](auto stored) {
      return WithType(out_dtype, [&](auto kept) {
        using From = decltype(stored);
        using To = decltype(kept);
        return Launch(ConvertKernel<n, From, To>, RowsGrid(1, count / n), kThreads, 0, stream,
                      static_cast<const From*>(in), count, static_cast<To*>(out));
      });
    });
  });
}

cudaError_t LaunchAdd(float* dst, const void* src, DType src_dtype, int64_t count,
                      cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return WithVectors(Vectorises(count, {dst, src}), [&](auto n) {
    return WithProductType(src_dtype, [&](auto product) {
      using G = decltype(product);
      return Launch(AddKernel<n, G>, RowsGrid(1, count / n), kThreads, 0, stream, dst,
                    static_cast<const G*>(src), count);
    });
  });
}

cudaError_t LaunchWriteBlockTables(const PlacedBlock* blocks, int64_t count, int32_t* block_tables,
                                   cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return Launch(WriteBlockTablesKernel, static_cast<unsigned>(CeilDiv<int64_t>(count, kThreads)),
                kThreads, 0, stream, blocks, count, block_tables);
}

}  // namespace lockstep::cuda
