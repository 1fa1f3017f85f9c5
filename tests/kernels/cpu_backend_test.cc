// What CpuBackend is made of: options, memory, allocation on the step path.
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "kernels/cpu_backend_options.h"
#include "tests/kernels/counting_new.h"
#include "tests/kernels/kernel_fixture.h"

namespace lockstep::testing {
namespace {

// Every kernel, over 40 tokens: a prefill chunk of 32 after 300, and 8 decodes.
class Layer {
 public:
  explicit Layer(Backend& backend) : backend_(backend) {
    up_ = *backend.AllocateLinear({96, 64, DType::kBF16, 1});
    down_ = *backend.AllocateLinear({64, 96, DType::kF32, 8});
    for (int seq = 0; seq < 9; ++seq) {
      starts_.push_back(static_cast<int32_t>(positions_.size()));
      lens_.push_back(332);
      for (int i = seq == 0 ? 0 : 31; i < 32; ++i) {
        positions_.push_back(300 + i);
        slots_.push_back(300 + i);
      }
    }
    starts_.push_back(40);
    rows_ = {8, 7, 6, 5, 4, 3, 2, 1, 0};
    batch_ = {40,
              9,
              positions_.data(),
              slots_.data(),
              starts_.data(),
              lens_.data(),
              rows_.data(),
              blocks_.data(),
              332};
    for (size_t i = 0; i < blocks_.size(); ++i) blocks_[i] = static_cast<int32_t>(i % 332);
  }

  void Step() {
    const int32_t ids[40] = {};
    backend_.Embed({table_.data(), DType::kF32, 1, 0, 64, ids, 40, x_.data()});
    backend_.AddRmsNorm({x_.data(), nullptr, table_.data(), 1e-5f, 40, 64, y_.data()});
    backend_.Linear(*up_, x_.data(), 40, wide_.data());
    backend_.Linear(*down_, wide_.data(), 40, x_.data());
    backend_.SiluMul({wide_.data(), 40, 48, y_.data()});
    backend_.RopeAndWriteKv({wide_.data(), 4, table_.data(), table_.data(), &batch_, &cache_});
    backend_.Attention({wide_.data(), 4, 0.25f, &batch_, &cache_, y_.data()});
    backend_.GatherRows(x_.data(), ids, 40, 64 * 4, y_.data());
    backend_.Add(x_.data(), y_.data(), DType::kF32, 40 * 64);
  }

 private:
  Backend& backend_;
  std::unique_ptr<LinearWeight> up_;
  std::unique_ptr<LinearWeight> down_;
  std::vector<float> table_ = std::vector<float>(332 * 8, 0.5f);
  std::vector<float> x_ = std::vector<float>(40 * 64);
  std::vector<float> y_ = std::vector<float>(40 * 64);
  std::vector<float> wide_ = std::vector<float>(40 * 96);
  std::vector<float> k_ = std::vector<float>(332 * 2 * 12);
  std::vector<float> v_ = k_;
  std::vector<int32_t> positions_, starts_, lens_, rows_;
  std::vector<int64_t> slots_;
  std::vector<int32_t> blocks_ = std::vector<int32_t>(9 * 332);
  KvCacheView cache_ = {k_.data(), v_.data(), DType::kF32, 332, 2, 1, 12};
  BatchIndex batch_;
};

TEST(CpuBackendTest, AStepAllocatesNothingOnceWarm) {
  const auto backend = MakeCpuBackend({3, "auto"});
  ASSERT_TRUE(backend.ok());
  Layer layer(**backend);
  layer.Step();
  const int64_t before = NumAllocations();
  for (int i = 0; i < 5; ++i) layer.Step();
  EXPECT_EQ(NumAllocations(), before);
}

std::string ErrorOf(const CpuBackendOptions& options) {
  const auto backend = MakeCpuBackend(options);
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(backend.status().message());
}

TEST(MakeCpuBackendTest, UnknownInstructionSetNamesThoseAvailable) {
  const std::string error = ErrorOf({1, "avx1024"});
  EXPECT_THAT(error, ::testing::HasSubstr("'avx1024'"));
  for (const cpu::VectorKernels* kernels : cpu::AvailableKernels()) {
    EXPECT_THAT(error, ::testing::HasSubstr(kernels->name));
  }
}

TEST(MakeCpuBackendTest, ThreadsAreLimited) {
  EXPECT_THAT(ErrorOf({0, "auto"}), ::testing::HasSubstr("is 0, allowed are 1 to 1024"));
  EXPECT_THAT(ErrorOf({-4, "auto"}), ::testing::HasSubstr("is -4"));
  EXPECT_THAT(ErrorOf({1025, "auto"}), ::testing::HasSubstr("is 1025"));
}

TEST(MakeCpuBackendTest, EveryAvailableInstructionSetCanBeAskedFor) {
  for (const cpu::VectorKernels* kernels : cpu::AvailableKernels()) {
    const auto backend = MakeCpuBackend({2, kernels->name});
    ASSERT_TRUE(backend.ok()) << backend.status();
    EXPECT_EQ((*backend)->Description(), std::string("cpu ") + kernels->name + ", 2 threads");
  }
}

TEST(MakeCpuBackendTest, AutoIsTheBest) {
  const auto backend = MakeCpuBackend({1, "auto"});
  ASSERT_TRUE(backend.ok());
  EXPECT_EQ((*backend)->Description(),
            std::string("cpu ") + cpu::AvailableKernels().back()->name + ", 1 thread");
}

class MemoryTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(MemoryTest, IsAlignedZeroedAndWritable) {
  const auto backend = MakeReferenceBackend();
  auto buffer = backend->Allocate(GetParam());
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_EQ(buffer->bytes(), GetParam());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
  std::vector<char> host(GetParam(), 1);
  backend->CopyToHost(host.data(), buffer->data(), GetParam());
  EXPECT_EQ(host, std::vector<char>(GetParam(), 0));
  host.assign(GetParam(), 7);
  backend->CopyToDevice(buffer->data(), host.data(), GetParam());
  std::vector<char> back(GetParam());
  backend->CopyToHost(back.data(), buffer->data(), GetParam());
  EXPECT_EQ(back, host);
}

INSTANTIATE_TEST_SUITE_P(Sizes, MemoryTest,
                         ::testing::Values(0, 1, 63, 64, 65, 4096, (2 << 20) - 1, 2 << 20,
                                           (4 << 20) + 5));

TEST(MemoryTest, ImpossibleSizesAreErrors) {
  const auto backend = MakeReferenceBackend();
  EXPECT_EQ(backend->Allocate(-1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(backend->Allocate(INT64_MAX).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(backend->Allocate(int64_t{1} << 60).status().code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace lockstep::testing
