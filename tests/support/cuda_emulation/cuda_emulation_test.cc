// The emulated CUDA runtime does what CUDA promises, and tells when a program asks for more.
#include "tests/support/cuda_emulation/emulation.h"

#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <device_instructions.cuh>
#include <numeric>
#include <vector>

#include "kernels/cuda/device.cuh"

namespace lockstep::cuda {
namespace {

using cuda_emulation::TakeFailure;
using ::testing::Each;
using ::testing::HasSubstr;

// Device memory with a vector's contents.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : count_(values.size()) {
    EXPECT_EQ(cudaMalloc(&data_, count_ * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  }
  explicit OnDevice(size_t count) : count_(count) {
    EXPECT_EQ(cudaMalloc(&data_, count_ * sizeof(T)), cudaSuccess);
  }
  ~OnDevice() { cudaFree(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  T* data() const { return data_; }
  // What it holds once the device is idle.
  std::vector<T> Values() const {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::vector<T> values(count_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t count_;
};

class CudaEmulation : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    EXPECT_EQ(TakeFailure(), "");
    cuda_emulation::SetIssue(cuda_emulation::Issue::kDeferred);
    cuda_emulation::SetThreadOrder(0);
    cuda_emulation::SetPatience(30);
  }
  template <typename... Parameters, typename... Arguments>
  cudaError_t Run(void (*kernel)(Parameters...), dim3 grid, dim3 block, Arguments... arguments) {
    const cudaError_t error = Launch(kernel, grid, block, shared_bytes_, stream_, arguments...);
    return error != cudaSuccess ? error : cudaStreamSynchronize(stream_);
  }

  cudaStream_t stream_ = nullptr;
  size_t shared_bytes_ = 0;
};

// ---- threads ----

__global__ void WriteIndices(int* out) {
  const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const int threads = blockDim.x * blockDim.y * blockDim.z;
  out[block * threads + thread] = 1000 * block + thread;
}

TEST_F(CudaEmulation, EveryThreadOfEveryBlockRunsOnce) {
  OnDevice<int> out(24 * 60);
  ASSERT_EQ(Run(WriteIndices, dim3(2, 3, 4), dim3(3, 4, 5), out.data()), cudaSuccess);
  const std::vector<int> values = out.Values();
  for (int i = 0; i < 24 * 60; ++i) EXPECT_EQ(values[i], 1000 * (i / 60) + i % 60);
}

__global__ void SumOverBlock(const float* in, float* out) {
  out[threadIdx.x] = BlockSum(in[threadIdx.x]);
}

TEST_F(CudaEmulation, SumsOverBlocksInAnyOrderOfThreads) {
  for (const int threads : {32, 64, 256, 1024}) {
    for (const uint64_t order : {0, 1, 2, 3}) {
      cuda_emulation::SetThreadOrder(order);
      std::vector<float> in(threads);
      std::iota(in.begin(), in.end(), 1.0f);
      const OnDevice<float> given(in);
      OnDevice<float> out(threads);
      ASSERT_EQ(Run(SumOverBlock, 1, threads, given.data(), out.data()), cudaSuccess);
      EXPECT_THAT(out.Values(), Each(threads * (threads + 1) / 2.0f));
    }
  }
}

__global__ void ReverseWithoutBarrier(const int* in, int* out, bool barrier) {
  __shared__ int values[64];
  values[threadIdx.x] = in[threadIdx.x];
  if (barrier) __syncthreads();
  out[threadIdx.x] = values[63 - threadIdx.x];
}

TEST_F(CudaEmulation, AMissingBarrierDependsOnTheOrderOfThreads) {
  const auto results = [&](int first, bool barrier) {
    std::vector<std::vector<int>> all;
    std::vector<int> in(64);
    std::iota(in.begin(), in.end(), first);
    const OnDevice<int> given(in);
    for (const uint64_t order : {0, 1, 7}) {
      cuda_emulation::SetThreadOrder(order);
      OnDevice<int> out(64);
      EXPECT_EQ(Run(ReverseWithoutBarrier, 1, 64, given.data(), out.data(), barrier), cudaSuccess);
      all.push_back(out.Values());
    }
    return all;
  };
  std::vector<int> reversed(64);
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  EXPECT_THAT(results(0, true), Each(reversed));
  const std::vector<std::vector<int>> raced = results(1000, false);
  EXPECT_NE(raced[0], raced[1]);
}

__global__ void LeaveEarly(int* out) {
  if (threadIdx.x >= 40) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}

TEST_F(CudaEmulation, ABarrierWaitsForThreadsThatHaveNotReturned) {
  OnDevice<int> out(40);
  ASSERT_EQ(Run(LeaveEarly, 1, 64, out.data()), cudaSuccess);
  EXPECT_THAT(out.Values(), Each(1));
}

__global__ void Diverge() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST_F(CudaEmulation, DifferentBarriersAreADivergence) {
  EXPECT_EQ(Run(Diverge, 1, 64), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure) << "until the failure is taken";
  EXPECT_THAT(TakeFailure(), HasSubstr("threads 0-31 waits at the barrier"));
}

__global__ void ShuffleInHalfAWarp(int* out) {
  if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);
}

TEST_F(CudaEmulation, AnExchangeWithLanesThatNeverComeFails) {
  OnDevice<int> out(32);
  EXPECT_EQ(Run(ShuffleInHalfAWarp, 1, 32, out.data()), cudaErrorLaunchFailure);
  EXPECT_THAT(TakeFailure(), HasSubstr("threads 16-31 has returned"));
}

// ---- warps ----

__global__ void Shuffles(int* out) {
  const int lane = threadIdx.x;
  out[lane] = __shfl_sync(0xffffffffu, lane, 5);
  out[32 + lane] = __shfl_xor_sync(0xffffffffu, lane, 3);
  out[64 + lane] = __shfl_down_sync(0xffffffffu, lane, 2);
  out[96 + lane] = __shfl_up_sync(0xffffffffu, lane, 1, 8);
  out[128 + lane] = __ballot_sync(0xffffffffu, lane % 2);
  if (lane < 8) out[160 + lane] = __all_sync(0xffu, lane < 8) + __any_sync(0xffu, lane == 9);
}

TEST_F(CudaEmulation, LanesExchangeValues) {
  OnDevice<int> out(168);
  ASSERT_EQ(Run(Shuffles, 1, 32, out.data()), cudaSuccess);
  const std::vector<int> values = out.Values();
  for (int lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(values[lane], 5);
    EXPECT_EQ(values[32 + lane], lane ^ 3);
    EXPECT_EQ(values[64 + lane], lane < 30 ? lane + 2 : lane);
    EXPECT_EQ(values[96 + lane], lane % 8 == 0 ? lane : lane - 1);
    EXPECT_EQ(values[128 + lane], static_cast<int>(0xaaaaaaaau));
    EXPECT_TRUE(lane >= 8 || values[160 + lane] == 1);
  }
}

// c [16, 8] = a [16, 16] b, b as given [16, 8] row-major (so transposed loads) through shared
// memory.
template <typename T>
__global__ void MultiplyTile(const T* a, const T* b, float* c, bool wait) {
  auto* tiles = DynamicShared<T>();
  T* b_tile = tiles + 16 * 16;
  const int lane = threadIdx.x;
  CopyAsync16(tiles + 8 * lane, a + 8 * lane, true);
  CopyAsync16(b_tile + 8 * lane, b + 8 * lane, lane < 16);
  CopyAsyncCommit();
  if (wait) CopyAsyncWait<0>();
  __syncthreads();
  uint32_t a_fragment[4];
  uint32_t b_fragments[4];
  LoadMatrix4(a_fragment, tiles + 16 * (lane % 16) + 8 * (lane / 16));
  LoadMatrix4Transposed(b_fragments, b_tile + 8 * lane);
  float sums[4] = {};
  Mma<T>(sums, a_fragment, {b_fragments[0], b_fragments[1]});
  for (int i = 0; i < 4; ++i) c[(lane / 4 + 8 * (i / 2)) * 8 + 2 * (lane % 4) + i % 2] = sums[i];
}

template <typename T>
struct Product {
  std::vector<T> a, b;
  std::vector<float> c;
};
template <typename T>
Product<T> SmallIntegers() {
  Product<T> product{std::vector<T>(256), std::vector<T>(128), std::vector<float>(128)};
  const auto value = [](int i) { return static_cast<float>((i * 37 + i / 5) % 17 - 8); };
  for (int i = 0; i < 256; ++i) product.a[i] = Narrow<T>(value(i));
  for (int i = 0; i < 128; ++i) product.b[i] = Narrow<T>(value(i + 1000));
  for (int i = 0; i < 128; ++i) {
    for (int k = 0; k < 16; ++k) {
      product.c[i] += value(i / 8 * 16 + k) * value(k * 8 + i % 8 + 1000);
    }
  }
  return product;
}

TEST_F(CudaEmulation, TensorCoresMultiplyWhatMatrixLoadsBring) {
  shared_bytes_ = (256 + 256) * sizeof(uint16_t);
  const auto expect_product = [&](const auto& product, const auto& kernel) {
    const OnDevice a(product.a);
    const OnDevice b(product.b);
    OnDevice<float> c(128);
    ASSERT_EQ(Run(kernel, 1, 32, a.data(), b.data(), c.data(), true), cudaSuccess);
    EXPECT_EQ(c.Values(), product.c);
  };
  expect_product(SmallIntegers<BF16>(), MultiplyTile<BF16>);
  expect_product(SmallIntegers<F16>(), MultiplyTile<F16>);
}

TEST_F(CudaEmulation, CopiesThatNobodyWaitedForHaveNotArrived) {
  const Product product = SmallIntegers<BF16>();
  const OnDevice<BF16> a(product.a);
  const OnDevice<BF16> b(product.b);
  OnDevice<float> c(128);
  shared_bytes_ = (256 + 256) * sizeof(BF16);
  ASSERT_EQ(Run(MultiplyTile<BF16>, 1, 32, a.data(), b.data(), c.data(), false), cudaSuccess);
  for (const float value : c.Values()) EXPECT_TRUE(std::isnan(value));
}

TEST_F(CudaEmulation, Bf16RoundsToNearestEven) {
  EXPECT_EQ(Pack<BF16>(1.0f, -2.0f), 0xc0003f80u);
  EXPECT_EQ(Pack<BF16>(__uint_as_float(0x3f808000), __uint_as_float(0x3f818000)), 0x3f823f80u);
  EXPECT_EQ(Pack<BF16>(NAN, __uint_as_float(0x7f7fffff)), 0x7f807fffu);
}

TEST_F(CudaEmulation, F16RoundsToNearestEvenAndToInfinity) {
  EXPECT_EQ(Pack<F16>(1.0f, -2.0f), 0xc0003c00u);
  EXPECT_EQ(Pack<F16>(__uint_as_float(0x3f801000), __uint_as_float(0x3f803000)), 0x3c023c00u);
  EXPECT_EQ(Pack<F16>(65519.0f, -65520.0f), 0xfc007bffu);
  EXPECT_EQ(Pack<F16>(0x1.8p-24f, -0x1p-25f), 0x80000002u);  // denormal ones
  EXPECT_EQ(Pack<F16>(NAN, 0.0f), 0x00007fffu);
  EXPECT_EQ(Widen(F16{0x7bff}), 65504.0f);
}

__global__ void MisalignedCopy(const char* in) { CopyAsync16(DynamicShared<char>() + 8, in, true); }

TEST_F(CudaEmulation, MisalignedCopiesFail) {
  const OnDevice<char> in(64);
  shared_bytes_ = 64;
  EXPECT_EQ(Run(MisalignedCopy, 1, 1, in.data()), cudaErrorLaunchFailure);
  EXPECT_THAT(TakeFailure(), HasSubstr("not aligned to 16 bytes"));
}

// ---- memory ----

__global__ void ReadShared(float* out) {
  __shared__ float values[4];
  out[blockIdx.x] = values[1];
  out[2 + blockIdx.x] = DynamicShared<float>()[0];
  values[1] = 1.0f;
  DynamicShared<float>()[0] = 1.0f;
}

TEST_F(CudaEmulation, MemoryNobodyWroteHoldsNaNs) {
  OnDevice<float> out(4);
  for (const float value : out.Values()) EXPECT_TRUE(std::isnan(value));
  shared_bytes_ = 16;
  ASSERT_EQ(Run(ReadShared, 2, 1, out.data()), cudaSuccess);
#ifndef __SANITIZE_ADDRESS__
  for (const float value : out.Values()) EXPECT_TRUE(std::isnan(value));
#endif
}

TEST_F(CudaEmulation, CopiesBeyondAnAllocationAreRefused) {
  OnDevice<int> memory(4);
  std::vector<int> host(8);
  EXPECT_EQ(cudaMemcpy(memory.data(), host.data(), 20, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host.data() + 4, host.data(), 16, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(memory.data() + 1, 0, 16), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(CudaEmulation, AKernelMayNotFollowPointersToTheHost) {
  std::vector<int> host(64);
  EXPECT_EQ(Run(WriteIndices, 1, 32, host.data()), cudaErrorLaunchFailure);
  EXPECT_THAT(TakeFailure(), HasSubstr("kernel argument 0"));
  int* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, 256), cudaSuccess);
  EXPECT_EQ(Run(WriteIndices, 1, 32, pinned), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(CudaEmulation, MemoryEnds) {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, free_bytes + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(memory, nullptr);
}

#ifdef __SANITIZE_ADDRESS__
__global__ void WriteBeyond(int* out, int global, int shared) {
  out[global] = 1;
  DynamicShared<int>()[shared] = 1;
}

TEST_F(CudaEmulation, AddressSanitizerSeesWhatLiesBeyond) {
  OnDevice<int> out(4);
  shared_bytes_ = 16;
  ASSERT_EQ(Run(WriteBeyond, 1, 1, out.data(), 3, 3), cudaSuccess);
  EXPECT_DEATH(Run(WriteBeyond, 1, 1, out.data(), 4, 0), "heap-buffer-overflow");
  EXPECT_DEATH(Run(WriteBeyond, 1, 1, out.data(), 0, 4), "heap-buffer-overflow");
}
#endif

// ---- limits ----

TEST_F(CudaEmulation, LaunchesBeyondTheDevicesLimitsAreRefused) {
  OnDevice<int> out(1);
  EXPECT_EQ(Run(WriteIndices, 0, 32, out.data()), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Run(WriteIndices, 1, 1025, out.data()), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Run(WriteIndices, dim3(1, 65536), 32, out.data()), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Run(WriteIndices, dim3(1, 1, 65536), 32, out.data()), cudaErrorInvalidConfiguration);
}

__global__ void FillShared(size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) DynamicShared<char>()[i] = 0;
}

TEST_F(CudaEmulation, MuchSharedMemoryMustBeAskedFor) {
  shared_bytes_ = 100 << 10;
  EXPECT_EQ(Run(FillShared, 1, 1, shared_bytes_), cudaErrorInvalidValue);
  const auto attribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
  EXPECT_EQ(cudaFuncSetAttribute(FillShared, attribute, 228 << 10), cudaErrorInvalidValue);
  ASSERT_EQ(cudaFuncSetAttribute(FillShared, attribute, 100 << 10), cudaSuccess);
  EXPECT_EQ(Run(FillShared, 1, 1, shared_bytes_), cudaSuccess);
}

}  // namespace
}  // namespace lockstep::cuda
