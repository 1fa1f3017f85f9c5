// The emulated instructions of Hopper do what the PTX manual says, and tell when a kernel breaks
// their rules. Descriptors are written out here, apart from those that the kernels make.
#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>
#include <wgmma.cuh>

#include "kernels/cuda/device.cuh"
#include "tests/support/cuda_emulation/emulation.h"

namespace lockstep::cuda {
namespace {

using cuda_emulation::TakeFailure;
using ::testing::HasSubstr;

constexpr int kRows = 64;      // of a
constexpr int kColumns = 128;  // of b, which lies in lines of 64 k
constexpr int kDepth = 64;
constexpr size_t kSharedBytes = 1024 + (kRows + kColumns) * 128 + 64;

template <typename T>
std::vector<T> SmallIntegers(int count, int seed) {
  std::vector<T> values(count);
  for (int i = 0; i < count; ++i) {
    values[i] = Narrow<T>(static_cast<float>(((i + seed) * 37 + i / 5) % 17 - 8));
  }
  return values;
}

// One matrix of `rows` rows of 64 numbers on the device, mapped in boxes of all of them.
template <typename T = BF16>
struct Mapped {
  Mapped(int rows, int seed, CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B)
      : values(SmallIntegers<T>(rows * kDepth, seed)) {
    EXPECT_EQ(cudaMalloc(&memory, values.size() * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    const cuuint64_t dims[] = {kDepth, static_cast<cuuint64_t>(rows), 1};
    const cuuint64_t strides[] = {kDepth * 2, static_cast<cuuint64_t>(rows) * kDepth * 2};
    const cuuint32_t box[] = {kDepth, static_cast<cuuint32_t>(rows), 1};
    const cuuint32_t steps[] = {1, 1, 1};
    EXPECT_EQ(
        cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, memory, dims, strides,
                               box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                               CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        CUDA_SUCCESS);
  }
  ~Mapped() { cudaFree(memory); }
  float At(int row, int column) const { return Widen(values[row * kDepth + column]); }

  std::vector<T> values;
  void* memory = nullptr;
  CUtensorMap map;
};

// What a kernel leaves out.
enum class Omit {
  kNothing,
  kBarrierFence,
  kWaitForCopies,
  kProxyFence,
  kRegisterFence,
  kCommit,
  kWait,
  kSecondWarp,
  kLastLanes,
  kCommonWait,
};

struct Tiles {
  char* a;
  char* b;
  uint64_t* barrier;
};
// Both matrices by copies at row `y` of a; threads go on when they have come.
Tiles Load(const CUtensorMap& a, const CUtensorMap& b, int y, Omit omit) {
  char* memory = DynamicShared<char>();
  memory += (1024 - SharedAddress(memory) % 1024) % 1024;
  const Tiles tiles = {memory, memory + kRows * 128,
                       reinterpret_cast<uint64_t*>(memory + (kRows + kColumns) * 128)};
  if (threadIdx.x == 0) {
    BarrierInit(tiles.barrier, 1);
    if (omit != Omit::kBarrierFence) FenceBarrierInit();
    BarrierArriveExpect(tiles.barrier, (kRows + kColumns) * 128);
    CopyBox(tiles.a, a, tiles.barrier, 0, y, 0);
    CopyBox(tiles.b, b, tiles.barrier, 0, 0, 0);
  }
  __syncthreads();
  if (omit != Omit::kWaitForCopies) {
    while (!BarrierTryWait(tiles.barrier, 0)) {
    }
  }
  return tiles;
}

// A descriptor: bits 0-13 the address, 16-29 the leading and 32-45 the stride offset, all in units
// of 16 bytes; 62-63 the swizzle, 1 being that of 128 bytes.
uint64_t Descriptor(uint32_t address, uint64_t leading, uint64_t stride) {
  return address / 16 | leading / 16 << 16 | stride / 16 << 32 | uint64_t{1} << 62;
}

// out [64, 128] = a [64, 64] b^T of b [128, 64].
template <typename T>
__global__ void MultiplyTiles(CUtensorMap a, CUtensorMap b, float* out, int y, Omit omit) {
  const Tiles tiles = Load(a, b, y, omit);
  if (omit == Omit::kProxyFence) {
    reinterpret_cast<volatile char*>(tiles.a)[threadIdx.x] = 7;
    __syncthreads();
  }
  float sums[16][4] = {};
  if (omit != Omit::kRegisterFence) WgmmaFence(sums);
  const bool leaves_out = (omit == Omit::kSecondWarp && threadIdx.x / 32 == 1) ||
                          (omit == Omit::kLastLanes && threadIdx.x % 32 >= 30);
  const int steps = leaves_out ? 3 : 4;
  for (int k = 0; k < steps; ++k) {
    Wgmma<T>(sums, Descriptor(SharedAddress(tiles.a) + 32 * k, 16, 1024),
             Descriptor(SharedAddress(tiles.b) + 32 * k, 16, 1024), k > 0);
  }
  if (omit != Omit::kCommit) WgmmaCommit();
  if (omit == Omit::kCommonWait && threadIdx.x / 32 == 1) {
    WgmmaWait<0>(sums);
  } else if (omit != Omit::kWait) {
    WgmmaWait<0>(sums);
  }
  for (int i = 0; i < 64; ++i) {
    const int lane = threadIdx.x % 32;
    const int row = threadIdx.x / 32 * 16 + i / 2 % 2 * 8 + lane / 4;
    out[row * kColumns + i / 4 * 8 + lane % 4 * 2 + i % 2] = sums[i / 4][i % 4];
  }
}

// out [64, 64] = ones [64, 16] times rows 16.. of b [128, 64]: sums of columns.
template <typename T>
__global__ void SumColumns(CUtensorMap a, CUtensorMap b, float* out, bool changed) {
  const Tiles tiles = Load(a, b, 0, Omit::kNothing);
  float sums[8][4] = {};
  const uint32_t pair = Pack<T>(1.0f, 1.0f);
  uint32_t ones[1][4] = {{pair, pair, pair, pair}};
  WgmmaFence(sums, ones);
  Wgmma<T>(sums, ones[0], Descriptor(SharedAddress(tiles.b) + 16 * 128, 0, 1024));
  WgmmaCommit();
  if (changed) ones[0][0] = 0;
  WgmmaWait<0>(sums);
  for (int i = 0; i < 32; ++i) {
    const int lane = threadIdx.x % 32;
    const int row = threadIdx.x / 32 * 16 + i / 2 % 2 * 8 + lane / 4;
    out[row * kDepth + i / 4 * 8 + lane % 4 * 2 + i % 2] = sums[i / 4][i % 4];
  }
}

class HopperTest : public ::testing::Test {
 protected:
  HopperTest() { EXPECT_EQ(cudaMalloc(&out_, kRows * kColumns * sizeof(float)), cudaSuccess); }
  ~HopperTest() override {
    EXPECT_EQ(TakeFailure(), "");
    cuda_emulation::SetThreadOrder(0);
    cudaFree(out_);
  }
  template <typename... Parameters, typename... Arguments>
  std::vector<float> Run(void (*kernel)(Parameters...), int threads, Arguments... arguments) {
    EXPECT_EQ(Launch(kernel, 1, threads, kSharedBytes, nullptr, arguments...), cudaSuccess);
    std::vector<float> out(kRows * kColumns);
    if (cudaMemcpy(out.data(), out_, out.size() * sizeof(float), cudaMemcpyDeviceToHost) !=
        cudaSuccess) {
      out.clear();
    }
    return out;
  }
  std::string FailureOf(Omit omit) {
    Run(MultiplyTiles<BF16>, 128, a_.map, b_.map, out_, 0, omit);
    return TakeFailure();
  }

  template <typename T>
  void ExpectProduct(const Mapped<T>& a, const Mapped<T>& b) {
    const std::vector<float> out =
        Run(MultiplyTiles<T>, 128, a.map, b.map, out_, 0, Omit::kNothing);
    for (int row = 0; row < kRows; ++row) {
      for (int column = 0; column < kColumns; ++column) {
        float want = 0;
        for (int k = 0; k < kDepth; ++k) want += a.At(row, k) * b.At(column, k);
        ASSERT_EQ(out[row * kColumns + column], want) << row << ", " << column;
      }
    }
  }
  template <typename T>
  void ExpectSumsOfColumns(const Mapped<T>& a, const Mapped<T>& b) {
    const std::vector<float> out = Run(SumColumns<T>, 128, a.map, b.map, out_, false);
    for (int column = 0; column < kDepth; ++column) {
      float want = 0;
      for (int k = 16; k < 32; ++k) want += b.At(k, column);
      for (int row = 0; row < kRows; ++row) ASSERT_EQ(out[row * kDepth + column], want) << column;
    }
  }

  Mapped<BF16> a_{kRows, 0};
  Mapped<BF16> b_{kColumns, 1000};
  float* out_ = nullptr;
};

TEST_F(HopperTest, MultipliesWhatCopiesBring) {
  for (const uint64_t order : {0, 1, 2, 3}) {
    cuda_emulation::SetThreadOrder(order);
    ExpectProduct(a_, b_);
  }
}

TEST_F(HopperTest, MultipliesF16) {
  const Mapped<F16> a(kRows, 0);
  const Mapped<F16> b(kColumns, 1000);
  ExpectProduct(a, b);
  ExpectSumsOfColumns(a, b);
}

TEST_F(HopperTest, MultipliesRegistersWithRunningColumns) { ExpectSumsOfColumns(a_, b_); }

TEST_F(HopperTest, BoxesBeyondATensorAreZeros) {
  for (const int y : {1, -1, kRows}) {
    const std::vector<float> out =
        Run(MultiplyTiles<BF16>, 128, a_.map, b_.map, out_, y, Omit::kNothing);
    for (int row = 0; row < kRows; ++row) {
      const bool exists = row + y >= 0 && row + y < kRows;
      float want = 0;
      for (int k = 0; exists && k < kDepth; ++k) want += a_.At(row + y, k) * b_.At(5, k);
      ASSERT_EQ(out[row * kColumns + 5], want) << row << " at " << y;
    }
  }
}

TEST_F(HopperTest, SwizzlesOfCopyAndProductMustAgree) {
  const Mapped<BF16> plain(kRows, 0, CU_TENSOR_MAP_SWIZZLE_NONE);
  EXPECT_NE(Run(MultiplyTiles<BF16>, 128, plain.map, b_.map, out_, 0, Omit::kNothing),
            Run(MultiplyTiles<BF16>, 128, a_.map, b_.map, out_, 0, Omit::kNothing));
}

TEST_F(HopperTest, CopiesThatNobodyWaitedForHaveNotArrived) {
  const std::string failure = FailureOf(Omit::kWaitForCopies);
  EXPECT_THAT(failure, HasSubstr("ended with copies on their way"));
}

TEST_F(HopperTest, SumsThatNobodyWaitedForAreUnknown) {
  EXPECT_THAT(FailureOf(Omit::kWait), HasSubstr("products that nobody waited for"));
  EXPECT_THAT(FailureOf(Omit::kCommit), HasSubstr("these sums belong to a later group"));
}

TEST_F(HopperTest, FencesMustNotBeMissing) {
  EXPECT_THAT(FailureOf(Omit::kBarrierFence), HasSubstr("fence.mbarrier_init is missing"));
  EXPECT_THAT(FailureOf(Omit::kProxyFence), HasSubstr("written without fence.proxy.async"));
  EXPECT_THAT(FailureOf(Omit::kRegisterFence), HasSubstr("sums that were not fenced"));
}

TEST_F(HopperTest, WarpsOfAGroupMustExecuteTheSame) {
  for (const uint64_t order : {0, 1, 2, 3}) {
    cuda_emulation::SetThreadOrder(order);
    for (const Omit omit : {Omit::kSecondWarp, Omit::kLastLanes, Omit::kCommonWait}) {
      EXPECT_THAT(FailureOf(omit), HasSubstr("execute different instructions"));
    }
  }
}

TEST_F(HopperTest, FactorsMustStayUntilTheWait) {
  Run(SumColumns<BF16>, 128, a_.map, b_.map, out_, true);
  EXPECT_THAT(TakeFailure(), HasSubstr("factors changed before the wait"));
}

// Phases of a barrier that two threads arrive at: thread 2 sees what they wrote before.
__global__ void Phases(float* out, bool first_arrives) {
  auto* barrier = DynamicShared<uint64_t>();
  auto* values = reinterpret_cast<float*>(barrier + 1);
  if (threadIdx.x == 0) BarrierInit(barrier, 2);
  __syncthreads();
  for (int phase = 0; phase < 3; ++phase) {
    if (threadIdx.x < 2) {
      values[threadIdx.x] = static_cast<float>(10 * phase + threadIdx.x);
      if (first_arrives || threadIdx.x == 1) BarrierArrive(barrier);
    }
    bool ended = false;
    for (int look = 0; look < 5 && !ended; ++look) ended = BarrierTryWait(barrier, phase % 2);
    if (threadIdx.x == 2) out[phase] = ended ? values[0] + values[1] : -1.0f;
    __syncthreads();
  }
}

TEST_F(HopperTest, PhasesEndWhenAllHaveArrived) {
  for (const uint64_t order : {0, 1, 2, 3}) {
    cuda_emulation::SetThreadOrder(order);
    const std::vector<float> out = Run(Phases, 3, out_, true);
    EXPECT_EQ(std::vector<float>(out.begin(), out.begin() + 3), (std::vector<float>{1, 21, 41}));
  }
}

TEST_F(HopperTest, PhasesThatNobodyEndsAreGivenUp) {
  const std::vector<float> out = Run(Phases, 3, out_, false);
  EXPECT_EQ(out[0], -1.0f);
}

__global__ void ArriveTwice() {
  auto* barrier = DynamicShared<uint64_t>();
  BarrierInit(barrier, 1);
  BarrierArriveExpect(barrier, 16);
  BarrierArrive(barrier);
}

TEST_F(HopperTest, ArrivalsBeyondThoseOfAPhaseFail) {
  Run(ArriveTwice, 1);
  EXPECT_THAT(TakeFailure(), HasSubstr("more arrivals than were to come"));
}

// The second warp writes what the first reads.
__global__ void TakeTurns(float* out) {
  auto* value = DynamicShared<float>();
  for (int turn = 0; turn < 3; ++turn) {
    if (threadIdx.x < 32) {
      NamedBarrierSync<64>(1);
      out[32 * turn + threadIdx.x] = *value;
      NamedBarrierArrive<64>(2);
    } else {
      if (turn > 0) NamedBarrierSync<64>(2);
      if (threadIdx.x == 32) *value = static_cast<float>(turn);
      NamedBarrierArrive<64>(1);
    }
  }
  if (threadIdx.x >= 32) NamedBarrierSync<64>(2);
}

TEST_F(HopperTest, NamedBarriersLetWarpsTakeTurns) {
  for (const uint64_t order : {0, 1, 2, 3}) {
    cuda_emulation::SetThreadOrder(order);
    const std::vector<float> out = Run(TakeTurns, 64, out_);
    for (int i = 0; i < 96; ++i) ASSERT_EQ(out[i], static_cast<float>(i / 32)) << order;
  }
}

// Of two warps one thread votes yes in every second turn.
__global__ void MeetingsVote(float* out, bool all_vote) {
  for (int turn = 0; turn < 4; ++turn) {
    if (!all_vote && threadIdx.x >= 32) {
      NamedBarrierSync<64>(1);
      continue;
    }
    const bool any = NamedBarrierAny<64>(1, turn % 2 == 0 && threadIdx.x == 37u + turn);
    out[64 * turn + threadIdx.x] = any ? 1.0f : 0.0f;
  }
}

TEST_F(HopperTest, VotesAreCountedAtEveryMeeting) {
  for (const uint64_t order : {0, 1, 2, 3}) {
    cuda_emulation::SetThreadOrder(order);
    const std::vector<float> out = Run(MeetingsVote, 64, out_, true);
    for (int i = 0; i < 256; ++i) ASSERT_EQ(out[i], i / 64 % 2 == 0) << order;
  }
  Run(MeetingsVote, 64, out_, false);
  EXPECT_THAT(TakeFailure(), HasSubstr("others came without a vote"));
}

TEST_F(HopperTest, MapsThatTheHardwareRefuses) {
  const auto encode = [&](uint64_t address, cuuint64_t stride, cuuint32_t columns) {
    CUtensorMap map;
    const cuuint64_t dims[] = {256, 8};
    const cuuint32_t box[] = {columns, 8};
    const cuuint32_t steps[] = {1, 1};
    return cuTensorMapEncodeTiled(
        &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, reinterpret_cast<void*>(address), dims, &stride,
        box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  EXPECT_EQ(encode(4096, 512, 64), CUDA_SUCCESS);
  EXPECT_EQ(encode(4104, 512, 64), CUDA_ERROR_INVALID_VALUE);  // a multiple of 8 only
  EXPECT_EQ(encode(4096, 520, 64), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode(4096, 512, 128), CUDA_ERROR_INVALID_VALUE);  // wider than the swizzle
}

}  // namespace
}  // namespace lockstep::cuda
