// Whatever is wrong with attention by wgmma, the trial at the start finds it.
#include "kernels/cuda/chunk_kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/support/cuda_emulation/emulation.h"

namespace lockstep::cuda {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class ChunkKernelsTest : public ::testing::Test {
 protected:
  ~ChunkKernelsTest() override { cuda_emulation::SetDevice({}); }

  ChunkVerdict Try(TensorMapEncoder encode) {
    const ChunkTrial trial = {.kv_dtype = DType::kBF16,
                              .head_dim = 64,
                              .num_kv_heads = 2,
                              .chunk = 59,
                              .context = 330,
                              .repeats = 1};
    const auto verdict = TryWgmma(trial, {encode, workspace(), nullptr});
    EXPECT_TRUE(verdict.ok()) << verdict.status();
    return verdict.value_or(ChunkVerdict());
  }
  ChunkKernels Chosen(const cuda_emulation::Device& device, DType dtype = DType::kBF16) {
    cuda_emulation::SetDevice(device);
    cudaDeviceProp properties = {};
    EXPECT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
    const auto kernels = ChunkKernels::Choose(dtype, properties, workspace(), nullptr);
    EXPECT_TRUE(kernels.ok()) << kernels.status();
    return kernels.value_or(ChunkKernels());
  }
  static KvCacheView Cache(int head_dim, int block_size, DType dtype = DType::kBF16) {
    KvCacheView cache;
    cache.dtype = dtype;
    cache.num_kv_heads = 1;
    cache.block_size = block_size;
    cache.head_dim = head_dim;
    return cache;
  }
  AttentionWorkspace workspace() { return {.data = memory_.data(), .bytes = kBytes}; }

 private:
  static constexpr int64_t kBytes = 8 << 20;
  testing::DeviceArray<uint8_t> memory_{kBytes};
};

// The driver's encoder with one argument changed.
template <typename Change>
TensorMapEncoder Encoder(Change) {
  return [](CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
            const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
            const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
            CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    cuuint32_t changed_box[] = {box[0], box[1], box[2]};
    Change()(changed_box, swizzle, address);
    return cuTensorMapEncodeTiled(map, type, rank, address, dims, strides, changed_box, steps,
                                  interleave, swizzle, promotion, fill);
  };
}

TEST_F(ChunkKernelsTest, WrongResultsAreSeen) {
  const ChunkVerdict verdict = Try(Encoder([](cuuint32_t*, CUtensorMapSwizzle& swizzle, void*) {
    swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
  }));
  EXPECT_FALSE(verdict.prefers_wgmma());
  EXPECT_THAT(verdict.wrong, StartsWith("is wrong: token 0 of head 0"));
}

TEST_F(ChunkKernelsTest, WaitsInVainEnd) {
  const ChunkVerdict verdict =
      Try(Encoder([](cuuint32_t* box, CUtensorMapSwizzle&, void*) { box[1] /= 2; }));
  EXPECT_FALSE(verdict.prefers_wgmma());
  EXPECT_EQ(verdict.wrong, "waits in vain");
}

TEST_F(ChunkKernelsTest, BlocksOfSomeSizesMayBeWrong) {
  const TensorMapEncoder encode = Encoder([](cuuint32_t* box, CUtensorMapSwizzle&, void*) {
    if (box[1] == 32) box[1] /= 2;
  });
  const auto others = CheckOtherBlocks(DType::kBF16, 64, {encode, workspace(), nullptr});
  ASSERT_TRUE(others.ok()) << others.status();
  EXPECT_THAT(others->right, ElementsAre(8, 64));
  EXPECT_EQ(others->wrong, ", over blocks of 32 by mma.sync (wgmma waits in vain)");
}

TEST_F(ChunkKernelsTest, RefusedMapsAreNoError) {
  const ChunkVerdict verdict = Try(Encoder([](cuuint32_t*, CUtensorMapSwizzle&, void*& address) {
    address = static_cast<char*>(address) + 8;
  }));
  EXPECT_FALSE(verdict.prefers_wgmma());
  EXPECT_THAT(verdict.wrong, StartsWith("is refused: "));
}

TEST_F(ChunkKernelsTest, ChoosesForEachHeadSizeAndSaysWhy) {
  const ChunkKernels chosen =
      Chosen({.num_multiprocessors = 1, .has_tensor_maps = true}, DType::kF16);
  const std::string& said = chosen.description();
  EXPECT_THAT(said, AllOf(StartsWith("heads of 64 by "), HasSubstr(", heads of 128 by "),
                          HasSubstr("TFLOP/s"), Not(HasSubstr("wrong"))));
  for (const int head_dim : {64, 128}) {
    const bool wgmma = absl::StrContains(said, absl::StrCat("heads of ", head_dim, " by wgmma"));
    for (const int block_size : {8, 16, 32, 64}) {
      EXPECT_EQ(chosen.EncoderFor(Cache(head_dim, block_size, DType::kF16)) != nullptr, wgmma)
          << said;
    }
    EXPECT_EQ(chosen.EncoderFor(Cache(head_dim, 16)), nullptr) << "not what was tried";
    EXPECT_EQ(chosen.EncoderFor(Cache(head_dim, 16, DType::kE4M3)), nullptr);
    EXPECT_FALSE(WgmmaAttentionSupports(Cache(head_dim, 16, DType::kE4M3)));
  }
  EXPECT_EQ(absl::StrContains(said, ", over fp8 caches by mma.sync"),
            absl::StrContains(said, " by wgmma ("));
  EXPECT_EQ(chosen.EncoderFor(Cache(96, 16, DType::kF16)), nullptr);
  EXPECT_EQ(chosen.EncoderFor(Cache(128, 48, DType::kF16)), nullptr);
}

TEST_F(ChunkKernelsTest, BackendsSayWhatTheyChoseAndDeterministicOnesDoNotTry) {
  cuda_emulation::SetDevice({.num_multiprocessors = 1, .has_tensor_maps = true});
  for (const bool deterministic : {false, true}) {
    const auto backend = CudaBackend::Create({.deterministic = deterministic});
    ASSERT_TRUE(backend.ok()) << backend.status();
    EXPECT_THAT((*backend)->Description(),
                HasSubstr(deterministic ? "; attention of chunks: mma.sync"
                                        : "; attention of chunks: heads of 64 by "));
  }
}

TEST_F(ChunkKernelsTest, OtherDevicesAndOldDriversKeepTheOtherKernel) {
  EXPECT_EQ(Chosen({.compute_major = 8, .has_tensor_maps = true}).description(), "mma.sync");
  EXPECT_EQ(Chosen({}).description(), "mma.sync (the driver is too old for wgmma)");
}

}  // namespace
}  // namespace lockstep::cuda
