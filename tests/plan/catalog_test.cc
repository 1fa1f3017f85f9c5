#include "deploy/plan/catalog.h"

#include <fstream>

#include "deploy/plan/formats.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::plan {
namespace {

using ::testing::HasSubstr;

TEST(Catalog, EveryNumberOfAGpuHasASourceAndADate) {
  ASSERT_GE(GpuNames().size(), 13u);
  for (const std::string& name : GpuNames()) {
    const auto gpu = FindGpu(name);
    ASSERT_TRUE(gpu.ok()) << gpu.status();
    for (const char* field : {"memory_gib", "bandwidth_gb_s", "f32_tflops", "bf16_tflops",
                              "link_gb_s", "nic_gb_s", "gpus_per_node"}) {
      ASSERT_EQ(gpu->sources.count(field), 1u) << name << " " << field;
      EXPECT_THAT(gpu->sources.at(field), HasSubstr(" (20")) << name << " " << field;
    }
    EXPECT_GT(gpu->memory_gib, 20.0) << name;
    EXPECT_GT(gpu->FlopsOf(Operands::k16Bits), 1e14) << name;
    EXPECT_GE(gpu->FlopsOf(Operands::kFp4), gpu->FlopsOf(Operands::k16Bits)) << name;
  }
}

TEST(Catalog, MemoryIsWhatTheDriverReports) {
  EXPECT_NEAR(FindGpu("h100-sxm-80g")->memory_gib, 79.2, 0.05);
}

TEST(Catalog, EveryFormatHasItsOwnRateAndWhatIsLackingRunsIn16Bits) {
  const Gpu a100 = *FindGpu("a100");
  EXPECT_FALSE(a100.Multiplies(Operands::kFp8));
  EXPECT_EQ(a100.FlopsOf(Operands::kFp8), 312e12);
  EXPECT_EQ(a100.FlopsOf(Operands::kInt8), 624e12);
  EXPECT_EQ(a100.FlopsOf(Operands::k32Bits), 19.5e12);
  const Gpu ada = *FindGpu("rtx-4090");
  EXPECT_EQ(ada.FlopsOf(Operands::kFp8), 330.3e12);
  EXPECT_EQ(ada.FlopsOf(Operands::kInt8), 660.6e12);
  EXPECT_EQ(FindGpu("h100")->FlopsOf(Operands::kFp4), 989.4e12);
  EXPECT_EQ(FindGpu("b200")->FlopsOf(Operands::kFp4), 9000e12);
}

TEST(Catalog, EveryGpuHasADatedPrice) {
  const Prices prices = BuiltInPrices();
  for (const std::string& name : GpuNames()) {
    ASSERT_EQ(prices.count(name), 1u) << name;
    EXPECT_THAT(prices.at(name).source, HasSubstr("(20")) << name;
  }
}

TEST(Catalog, AliasesAndCaseAreUnderstood) {
  EXPECT_EQ(FindGpu("H100")->name, "h100-sxm-80g");
  EXPECT_EQ(LoadModel("405B")->name, "llama-3.1-405b");
}

TEST(Catalog, UnknownNamesGetTheNearest) {
  EXPECT_THAT(std::string(FindGpu("h100-smx").status().message()),
              HasSubstr("did you mean h100-sxm-80g?"));
  EXPECT_THAT(std::string(LoadModel("lama-3.1-8b").status().message()),
              HasSubstr("did you mean llama-3.1-8b?"));
  EXPECT_THAT(std::string(FindWeightFormat("fp9").status().message()),
              HasSubstr("did you mean fp8?"));
  EXPECT_EQ(std::string(LoadModel("/nowhere/config.json").status().message()),
            "cannot read /nowhere/config.json: no such file");
  EXPECT_THAT(std::string(FindGpu("foo").status().message()),
              HasSubstr("gpu \"foo\" is not known; known: h100-sxm-80g, "));
  EXPECT_THAT(std::string(FindGpu("h10").status().message()), HasSubstr("did you mean h100"));
  EXPECT_THAT(std::string(FindKvFormat("int3").status().message()), HasSubstr("int"));
}

class PriceFile : public ::testing::Test {
 protected:
  absl::StatusOr<Prices> Load(const std::string& text) {
    const std::string path = ::testing::TempDir() + "/prices.json";
    std::ofstream(path) << text;
    return LoadPrices(path);
  }
};

TEST_F(PriceFile, ReplacesTheBuiltIn) {
  const auto prices = Load(R"({"prices":[{"gpu":"h100","usd_per_gpu_hour":2}]})");
  ASSERT_TRUE(prices.ok()) << prices.status();
  EXPECT_EQ(prices->at("h100-sxm-80g").usd_per_gpu_hour, 2.0);
}

TEST_F(PriceFile, IsCheckedFieldByField) {
  EXPECT_THAT(std::string(Load("{}").status().message()), HasSubstr("\"prices\""));
  EXPECT_THAT(std::string(Load(R"({"prices":[{"gpu":"h100","usd_per_gpu_hour":2},
                                             {"gpu":"h100-sxm-80g","usd_per_gpu_hour":3}]})")
                              .status()
                              .message()),
              HasSubstr("h100-sxm-80g has two prices"));
  EXPECT_THAT(std::string(Load(R"({"prices":[{"gpu":"h100"}]})").status().message()),
              HasSubstr("usd_per_gpu_hour"));
  EXPECT_THAT(
      std::string(Load(R"({"prices":[{"gpu":"h100","usd_per_gpu_hour":-1}]})").status().message()),
      HasSubstr("not in [0, 1000000]"));
  EXPECT_FALSE(LoadPrices("/nowhere/prices.json").ok());
}

}  // namespace
}  // namespace lockstep::plan
