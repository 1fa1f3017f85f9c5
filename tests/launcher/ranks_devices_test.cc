#include "launcher/serving/ranks_devices.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/accelerator.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(RanksDevicesTest, GpusAreCountedOnceAndOnlyWithARank) {
  std::vector<AcceleratorInfo> gpus(4);
  for (AcceleratorInfo& gpu : gpus) gpu.memory_bytes = 1000;
  EXPECT_EQ(MemoryOfGpus(gpus, /*ranks_per_host=*/2, /*num_hosts=*/1, 0.5), 1000);
  EXPECT_EQ(MemoryOfGpus(gpus, 4, 2, 0.9), 7200);
  EXPECT_EQ(MemoryOfGpus(gpus, 8, 1, 1.0), 4000) << "ranks share GPUs";
}

TEST(RanksDevicesTest, AGpuThatDoesNotDoIsRefusedWhereARankWouldBeOnIt) {
  std::vector<AcceleratorInfo> gpus(3);
  for (size_t i = 0; i < gpus.size(); ++i) gpus[i].uuid = absl::StrCat("GPU-", i);
  gpus[2].refusal = "Quadro P400 is too old";
  gpus[2].pci_bus_id = "0000:41:00.0";
  EXPECT_TRUE(CheckGpusOfThisHost(gpus, /*num_ranks=*/2, /*may_share=*/false).ok());
  for (const int ranks : {3, 8}) {
    EXPECT_THAT(std::string(CheckGpusOfThisHost(gpus, ranks, false).message()),
                HasSubstr("GPU 2 (0000:41:00.0), on which a rank would be: Quadro P400"));
  }
  gpus[2].refusal = "";
  EXPECT_TRUE(CheckGpusOfThisHost(gpus, 3, false).ok());
  EXPECT_THAT(std::string(CheckGpusOfThisHost(gpus, 8, false).message()),
              HasSubstr("--share-gpus"));
  EXPECT_TRUE(CheckGpusOfThisHost(gpus, 8, true).ok());
}

// Who starts a server again after failures must do so where a driver comes up late.
TEST(RanksDevicesTest, WrongFlagsAreToldFromMissingGpus) {
  RanksDevices cpus;
  RankFlags f16;
  f16.dtype = "f16";
  ModelFlags fp8;
  fp8.quantize = "fp8";
  EXPECT_TRUE(absl::IsInvalidArgument(CheckFormats({}, f16, cpus)));
  EXPECT_TRUE(absl::IsInvalidArgument(CheckFormats(fp8, {}, cpus)));
  cpus.why_no_gpus = "; no GPU is used: no driver";
  for (const absl::Status& status : {CheckFormats({}, f16, cpus), CheckFormats(fp8, {}, cpus)}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("no driver"));
  }
}

}  // namespace
}  // namespace lockstep
