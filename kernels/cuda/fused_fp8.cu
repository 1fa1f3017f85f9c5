// AddRmsNorm and SiluMul whose rows go to a product in e4m3: quantized before they leave their
// block, which spares a launch and, of each number, 2 bytes written and 2 read. Bits are those of
// the separate kernels: numbers are rounded as those store them before anything else is done to
// them.
//
// Memory-bound. Bytes to a number: AddRmsNorm 8 read (residual, delta), 5 written; SiluMul 8 read,
// 1 written. Of products that are rounded 2 instead of 4.
#include <algorithm>

#include "kernels/cuda/e4m3_row.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/rms_norm.cuh"
#include "kernels/cuda/silu.cuh"
#include "kernels/cuda/vectors.cuh"

namespace lockstep::cuda {
namespace {

// As memory of T holds them.
template <int n, typename T>
struct alignas(n * sizeof(T)) Narrowed {
  T of[n];
};
template <typename T, int n>
__device__ Narrowed<n, T> Round(const Floats<n>& x) {
  Narrowed<n, T> rounded;
  StoreNear(rounded.of, x);
  return rounded;
}
template <int n, typename T>
__device__ Floats<n> Widened(const Narrowed<n, T>& x) {
  return Load<n>(x.of);
}

// The 1 asks for nothing: without it 8 bytes are spilled for the sake of a second block.
template <int n, typename G, typename T>
__global__ void __launch_bounds__(1024, 1) AddRmsNormE4m3Kernel(RmsNormArgs args, E4m3Rows out) {
  LetLaterKernelsBegin();
  RmsNormRow<n, G> row(args, blockIdx.x);
  row.FetchWeights();
  WaitForEarlierKernels();
  row.Normalize(BlockSum(row.AddAndSquare()));
  unsigned largest = 0;
  row.ForEach(
      [&](const Floats<n>& x, int64_t) { largest = LargestOf(Widened(Round<T>(x)), largest); });
  const E4m3Scale scale(BlockMax(largest), out.most_scale);
  if (threadIdx.x == 0) out.scales[blockIdx.x] = scale.value();
  uint8_t* const to = out.q + int64_t{blockIdx.x} * args.hidden;
  row.ForEach(
      [&](const Floats<n>& x, int64_t column) { scale.Store(to + column, Widened(Round<T>(x))); });
}

// A block keeps so many bytes of its row, as T, in shared memory; what a longer row has beyond them
// is computed again. Registers that hold as much would leave a multiprocessor room for one block of
// 1024 threads, and nobody would read while that one quantizes.
constexpr int kGatedKeptBytes = 56 << 10;

template <int n, typename G, typename T>
__global__ void __launch_bounds__(1024, 2)
    SiluMulE4m3Kernel(const G* gate_up, int64_t width, int num_kept, E4m3Rows out) {
  LetLaterKernelsBegin();
  WaitForEarlierKernels();
  const G* const gates = gate_up + int64_t{blockIdx.x} * 2 * width;
  const G* const ups = gates + width;
  const auto num_vectors = static_cast<int>(width / n);
  const auto gated = [&](int i) {
    return Round<T>(Gated(Load<n>(gates + int64_t{i} * n), Load<n>(ups + int64_t{i} * n)));
  };
  auto* const kept = DynamicShared<Narrowed<n, T>>();  // each vector for the thread that wrote it
  unsigned largest = 0;
  for (int i = threadIdx.x; i < num_vectors; i += blockDim.x) {
    const Narrowed<n, T> x = gated(i);
    if (i < num_kept) kept[i] = x;
    largest = LargestOf(Widened(x), largest);
  }
  const E4m3Scale scale(BlockMax(largest), out.most_scale);
  if (threadIdx.x == 0) out.scales[blockIdx.x] = scale.value();
  uint8_t* const to = out.q + int64_t{blockIdx.x} * width;
  for (int i = threadIdx.x; i < num_vectors; i += blockDim.x) {
    scale.Store(to + int64_t{i} * n, Widened(i < num_kept ? kept[i] : gated(i)));
  }
}

template <int n, typename G, typename T>
cudaError_t LaunchGatedRows(const SiluMulArgs& args, const E4m3Rows& out,
                            const KernelStream& stream) {
  const auto kernel = SiluMulE4m3Kernel<n, G, T>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kGatedKeptBytes);
  if (error != cudaSuccess) return error;
  constexpr int64_t kVectorBytes = sizeof(Narrowed<n, T>);
  const int64_t num_kept = std::min(args.width / n, kGatedKeptBytes / kVectorBytes);
  return LaunchOverlapping(kernel, static_cast<unsigned>(args.num_tokens),
                           RowThreads(args.width / n), static_cast<size_t>(num_kept * kVectorBytes),
                           stream, static_cast<const G*>(args.gate_up), args.width,
                           static_cast<int>(num_kept), out);
}

}  // namespace

// The sum of squares must be the one of the norm alone: the same vectors, the same threads.
cudaError_t LaunchAddRmsNormFp8(const RmsNormArgs& args, DType rounded_to, const E4m3Rows& out,
                                const KernelStream& stream) {
  if (args.num_tokens == 0) return cudaSuccess;
  const void* delta = args.delta;  // null is as aligned as can be
  const bool vectorises = Vectorises(args.hidden, {args.residual, delta, args.weight, out.q});
  return WithVectors(vectorises, [&](auto n) {
    return WithProductType(args.delta_dtype, [&](auto addend) {
      return WithType(rounded_to, [&](auto element) {
        return LaunchOverlapping(AddRmsNormE4m3Kernel<n, decltype(addend), decltype(element)>,
                                 static_cast<unsigned>(args.num_tokens),
                                 RowThreads(args.hidden / n), 0, stream, args, out);
      });
    });
  });
}

cudaError_t LaunchSiluMulFp8(const SiluMulArgs& args, DType rounded_to, const E4m3Rows& out,
                             const KernelStream& stream) {
  if (args.num_tokens == 0) return cudaSuccess;
  return WithVectors(Vectorises(args.width, {args.gate_up, out.q}), [&](auto n) {
    return WithProductType(args.gate_up_dtype, [&](auto gate) {
      return WithType(rounded_to, [&](auto element) {
        return LaunchGatedRows<n, decltype(gate), decltype(element)>(args, out, stream);
      });
    });
  });
}

}  // namespace lockstep::cuda
