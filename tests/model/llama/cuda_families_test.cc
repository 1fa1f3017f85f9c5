// The families that share Llama's layers over the CUDA backend. On the emulation of CUDA, and on
// real GPUs (tests/gpu/run.sh).
#include <string>

#include "gtest/gtest.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/model/llama/family_models.h"

namespace lockstep::testing {
namespace {

class CudaFamiliesTest : public ::testing::TestWithParam<const char*> {
 protected:
  // Weights, too, in what products multiply.
  DriveOptions OnGpus(DType compute) const {
    DriveOptions options = family_.options;
    options.stage.weights = WeightsIn(compute);
    options.make_backend = [compute]() -> std::unique_ptr<Backend> {
      auto backend = cuda::CudaBackend::Create({.compute = compute});
      EXPECT_TRUE(backend.ok()) << backend.status();
      return *std::move(backend);
    };
    return options;
  }

  FamilyModel family_ = MakeFamilyModel(GetParam());
};

TEST_P(CudaFamiliesTest, F32ComputesTheGoldenNumbers) {
  ExpectGoldenNumbers(family_, OnGpus(DType::kF32));
}

TEST_P(CudaFamiliesTest, Bf16IsAsNearAsItsRounding) {
  const DriveOptions gpu = OnGpus(DType::kBF16);
  DriveOptions cpu = gpu;
  cpu.make_backend = CpuBackends(1);
  const auto got = Drive(family_.model->checkpoint(), gpu, family_.requests);
  const auto want = Drive(family_.model->checkpoint(), cpu, family_.requests);
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_TRUE(want.ok()) << want.status();
  EXPECT_LT(Distance(*got, *want), 0.02);
}

INSTANTIATE_TEST_SUITE_P(Families, CudaFamiliesTest, ::testing::ValuesIn(kFamilyModels),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace lockstep::testing
