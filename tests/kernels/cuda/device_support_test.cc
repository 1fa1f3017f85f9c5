// GPUs that do not run the kernels are refused when a backend is made, not by its first kernel.
#include "kernels/cuda/device_support.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/support/cuda_emulation/emulation.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DeviceSupportTest : public ::testing::Test {
 protected:
  ~DeviceSupportTest() override { cuda_emulation::SetDevice({}); }
  static absl::Status MakeOn(const cuda_emulation::Device& device) {
    cuda_emulation::SetDevice(device);
    return cuda::CudaBackend::Create({}).status();
  }
};

TEST_F(DeviceSupportTest, KernelsRunFrom80On) {
  for (const int major : {8, 9, 10, 12}) {
    EXPECT_TRUE(MakeOn({.compute_major = major}).ok()) << major;
  }
}

TEST_F(DeviceSupportTest, AnOldGpuIsNamed) {
  const absl::Status status = MakeOn({.name = "Tesla T4", .compute_major = 7, .compute_minor = 5});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("Tesla T4 of compute capability 7.5 is too old: kernels are compiled for 8.0"));
}

// The driver is older than the build, the GPU newer than what it was compiled for.
TEST_F(DeviceSupportTest, ADriverThatCannotCompileTheKernelsIsTold) {
  const absl::Status status = MakeOn({.name = "NVIDIA B200",
                                      .compute_major = 10,
                                      .compute_minor = 0,
                                      .driver_compiles_ptx = false});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("NVIDIA B200 of compute capability 10.0 does not run"),
                    HasSubstr("unsupported toolchain"), HasSubstr("update the driver")));
}

// CUDA answers nothing any more; where the GPU lies was known before.
TEST_F(DeviceSupportTest, AGpuThatFailsIsNamedAsTheProcessEnds) {
  const auto backend = cuda::CudaBackend::Create({});
  ASSERT_TRUE(backend.ok()) << backend.status();
  const auto fail = [&] {
    cuda_emulation::SetDevice({.ecc_error_after_kernels = 1});
    (*backend)->Synchronize();
  };
  EXPECT_DEATH(fail(),
               "CHECK failed.*: uncorrectable ECC error encountered on GPU 0 "
               "\\(0000:01:00.0\\)");
}

}  // namespace
}  // namespace lockstep::testing
