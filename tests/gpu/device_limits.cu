#include "tests/gpu/device_limits.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "absl/status/status.h"
#include "kernels/cuda/gemm.h"

namespace lockstep::bench {
namespace {

constexpr int64_t kBytes = int64_t{4} << 30;
constexpr int64_t kHostBytes = int64_t{256} << 20;
constexpr int64_t kSide = 8192;  // of the large product
constexpr int kRepeats = 10;

void Fail(const char* why) {
  std::fprintf(stderr, "device_limits: %s\n", why);
  std::exit(1);
}
void Check(cudaError_t error) {
  if (error != cudaSuccess) Fail(cudaGetErrorString(error));
}
void Check(const absl::Status& status) {
  if (!status.ok()) Fail(status.ToString().c_str());
}

__global__ void ReadAll(const uint4* data, int64_t count, uint32_t* sink) {
  uint32_t sum = 0;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < count; i += 4 * stride) {
    const uint4 a = data[i], b = data[i + stride], c = data[i + 2 * stride],
                d = data[i + 3 * stride];
    sum += a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w;
    sum += c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  for (; i < count; i += stride) sum += data[i].x;
  if (sum == 0x12345678u) *sink = sum;  // keeps the loads
}

// Numbers of both signs, from 1 to 2 in size, one of bf16 or two of e4m3 to each 16 bits: products
// of zeros, or of what is no number, run faster than real ones.
__global__ void FillRandom(uint16_t* values, int64_t count, bool is_fp8, uint32_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + seed;
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    x ^= x >> 13;
    values[i] = static_cast<uint16_t>(is_fp8 ? (x & 0x8787u) | 0x3838u : (x & 0x807fu) | 0x3f80u);
  }
}

// The shortest of several runs.
template <typename Work>
double BestSeconds(cudaStream_t stream, const Work& work) {
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  float best = 1e30f;
  for (int repeat = -2; repeat < kRepeats; ++repeat) {
    float milliseconds = 0;
    Check(cudaEventRecord(begin, stream));
    work();
    Check(cudaEventRecord(end, stream));
    Check(cudaEventSynchronize(end));
    Check(cudaEventElapsedTime(&milliseconds, begin, end));
    if (repeat >= 0) best = std::min(best, milliseconds);
  }
  Check(cudaEventDestroy(begin));
  Check(cudaEventDestroy(end));
  return best * 1e-3;
}

// The mean of the second half of at least half a second's runs.
template <typename Work>
double SustainedSeconds(cudaStream_t stream, double best_seconds, const Work& work) {
  constexpr double kSeconds = 0.5;
  const int half = std::max(1, static_cast<int>(kSeconds / 2 / best_seconds));
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  float milliseconds = 0;
  for (int i = 0; i < half; ++i) work();
  Check(cudaEventRecord(begin, stream));
  for (int i = 0; i < half; ++i) work();
  Check(cudaEventRecord(end, stream));
  Check(cudaEventSynchronize(end));
  Check(cudaEventElapsedTime(&milliseconds, begin, end));
  Check(cudaEventDestroy(begin));
  Check(cudaEventDestroy(end));
  return milliseconds * 1e-3 / half;
}

struct Rates {
  double sustained = 0;
  double brief = 0;
};

Rates ProductRates(cudaStream_t stream, uint8_t* memory, bool is_fp8) {
  auto gemm = cuda::Gemm::Create(stream, {});
  Check(gemm.status());
  Check((*gemm)->Prepare(kSide, kSide, is_fp8));
  constexpr int64_t kMatrix = kSide * kSide;
  auto* w = reinterpret_cast<uint16_t*>(memory);
  uint16_t* x = w + kMatrix;
  FillRandom<<<1024, 256, 0, stream>>>(w, 2 * kMatrix, is_fp8, 7);
  auto* y = reinterpret_cast<float*>(x + kMatrix);
  auto* scales = is_fp8 ? y + kMatrix : nullptr;
  if (is_fp8) Check(cudaMemsetAsync(scales, 0, kSide * sizeof(float), stream));
  const auto multiply = [&] { (*gemm)->Run({kSide, kSide, w, scales}, {kSide, x, scales}, y); };
  const double best = BestSeconds(stream, multiply);
  const double flops = 2.0 * kSide * kSide * kSide;
  return {flops / SustainedSeconds(stream, best, multiply), flops / best};
}

void MeasureHostCopies(cudaStream_t stream, uint8_t* memory, DeviceLimits& limits) {
  void* host = nullptr;
  Check(cudaHostAlloc(&host, kHostBytes, 0));
  limits.to_host_bytes_per_s =
      kHostBytes / BestSeconds(stream, [&] {
        Check(cudaMemcpyAsync(host, memory, kHostBytes, cudaMemcpyDeviceToHost, stream));
      });
  limits.to_device_bytes_per_s =
      kHostBytes / BestSeconds(stream, [&] {
        Check(cudaMemcpyAsync(memory, host, kHostBytes, cudaMemcpyHostToDevice, stream));
      });
  Check(cudaFreeHost(host));
}

}  // namespace

DeviceLimits MeasureDeviceLimits(int device) {
  Check(cudaSetDevice(device));
  cudaDeviceProp properties;
  Check(cudaGetDeviceProperties(&properties, device));
  cudaStream_t stream;
  Check(cudaStreamCreate(&stream));
  uint8_t* memory;
  Check(cudaMalloc(&memory, kBytes));
  Check(cudaMemset(memory, 1, kBytes));
  const int blocks = 8 * properties.multiProcessorCount;
  DeviceLimits limits;
  const Rates bf16 = ProductRates(stream, memory, false);  // first: it wakes the clocks
  limits.bf16_flops_per_s = bf16.sustained;
  limits.brief_bf16_flops_per_s = bf16.brief;
  limits.read_bytes_per_s =
      kBytes / BestSeconds(stream, [&] {
        ReadAll<<<blocks, 512, 0, stream>>>(reinterpret_cast<const uint4*>(memory), kBytes / 16,
                                            reinterpret_cast<uint32_t*>(memory));
      });
  limits.copy_bytes_per_s = kBytes / BestSeconds(stream, [&] {
                              Check(cudaMemcpyAsync(memory + kBytes / 2, memory, kBytes / 2,
                                                    cudaMemcpyDeviceToDevice, stream));
                            });
  MeasureHostCopies(stream, memory, limits);
  if (10 * properties.major + properties.minor >= 89) {
    const Rates fp8 = ProductRates(stream, memory, true);
    limits.fp8_flops_per_s = fp8.sustained;
    limits.brief_fp8_flops_per_s = fp8.brief;
  }
  Check(cudaFree(memory));
  Check(cudaStreamDestroy(stream));
  return limits;
}

}  // namespace lockstep::bench
