#include "deploy/plan/host_profile.h"

#include <cstdlib>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/plan/hand_made_profile.h"

namespace lockstep::plan {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(HostProfile, ComesBackFromItsFile) {
  const HostProfile written = HandMadeProfile();
  const auto read = ParseHostProfile(HostProfileJson(written));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(HostProfileJson(*read), HostProfileJson(written));
  EXPECT_EQ(read->source(), "calibrated 2026-01-02 on elsewhere");
}

TEST(HostProfile, OfGpusComesBackFromItsFile) {
  const HostProfile written = HandMadeGpuProfile();
  const auto read = ParseHostProfile(HostProfileJson(written));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(HostProfileJson(*read), HostProfileJson(written));
  EXPECT_EQ(read->device_text(), "2 x NVIDIA H100 80GB HBM3, 79.2 GiB each");
  EXPECT_EQ(read->speeds[1].all_reduces.size(), 3u);
  EXPECT_DOUBLE_EQ(read->speeds[0].formats[1].products_gflop_s, 1200e3);
}

TEST(HostProfile, OfGpusLiesBesideThatOfCpus) {
  ::setenv("XDG_CONFIG_HOME", "/somewhere", /*overwrite=*/1);
  EXPECT_THAT(DefaultProfilePath("cpu"), StartsWith("/somewhere/lockstep/"));
  EXPECT_THAT(DefaultProfilePath("cuda"), EndsWith(".cuda.json"));
  EXPECT_NE(DefaultProfilePath("cpu"), DefaultProfilePath("cuda"));
}

struct Nonsense {
  const char* what;
  const char* is;
  const char* becomes;
  const char* complaint;
};

class NonsenseProfile : public ::testing::TestWithParam<Nonsense> {};

TEST_P(NonsenseProfile, IsRefusedInOneLine) {
  const Nonsense& nonsense = GetParam();
  std::string good = HostProfileJson(HandMadeProfile());
  if (good.find(nonsense.is) == std::string::npos) good = HostProfileJson(HandMadeGpuProfile());
  const std::string bad = absl::StrReplaceAll(good, {{nonsense.is, nonsense.becomes}});
  ASSERT_NE(good, bad);
  const auto read = ParseHostProfile(bad);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(read.status().message()), HasSubstr(nonsense.complaint));
}

INSTANTIATE_TEST_SUITE_P(
    Files, NonsenseProfile,
    ::testing::Values(
        Nonsense{"NoJson", "{\n", "{{\n", "byte"},
        Nonsense{"AnotherKind", "lockstep host profile", "shopping list", "is not a host profile"},
        Nonsense{"AnotherVersion", "\"version\": 3", "\"version\": 2",
                 "version is 2; it must be a whole number from 3 to 3: calibrate again"},
        Nonsense{"NoDevice", "\"device\"", "\"gadget\"", "device is missing"},
        Nonsense{"AnotherDevice", "\"kind\": \"cuda\"", "\"kind\": \"tpu\"",
                 "device.kind is \"tpu\"; it must be cpu or cuda"},
        Nonsense{"NoGpus", "\"count\": 2", "\"count\": 0",
                 "device.count is 0; it must be a whole number from 1"},
        Nonsense{"NoMemory", "\"memory_bytes\"", "\"memory\"", "device.memory_bytes is missing"},
        Nonsense{"SmallerMessages", "\"bytes\": 1048576.0", "\"bytes\": 1024",
                 "speeds[1].all_reduces[1].bytes is 1024; it must be above the 4096"},
        Nonsense{"NoProducts", "\"products_gflop_s\": 600000.0", "\"products_gflop_s\": 0",
                 "speeds[0].formats[0].products_gflop_s is 0; it must be a number from 1e-06"},
        Nonsense{"NoCores", "\"cores\": 2", "\"cores\": 0",
                 "cores is 0; it must be a whole number from 1"},
        Nonsense{"Missing", "\"step_us\"", "\"stop_us\"", "step_us is missing"},
        Nonsense{"Negative", "\"layer_us\": 10.0", "\"layer_us\": -10.0",
                 "speeds[0].layer_us is -10.0; it must be a number from 0"},
        Nonsense{"Text", "\"kv_gb_s\": 2.0", "\"kv_gb_s\": \"fast\"",
                 "speeds[0].formats[0].kv_gb_s is \"fast\"; it must be a number"},
        Nonsense{"NothingPerSecond", "\"kv_gb_s\": 2.0", "\"kv_gb_s\": 0",
                 "speeds[0].formats[0].kv_gb_s is 0; it must be a number from 1e-06"},
        Nonsense{"Descending", "\"tokens\": 100.0", "\"tokens\": 1",
                 "speeds[0].formats[0].linear[1].tokens is 1; it must be above the 1"},
        Nonsense{"NotAnArray", "\"speeds\": [", "\"speeds\": 3, \"others\": [",
                 "speeds is 3; it must be an array"}),
    [](const auto& info) { return info.param.what; });

TEST(LinearSeconds, FollowsTheMeasuredCurve) {
  FormatSpeed speed;
  speed.linear = {{1, 0.1}, {100, 1.0}};
  constexpr double kBytes = 1e9;
  EXPECT_DOUBLE_EQ(LinearSeconds(speed, kBytes, 1), 0.1);
  EXPECT_DOUBLE_EQ(LinearSeconds(speed, kBytes, 0.5), 0.1);     // the weights are read all the same
  EXPECT_NEAR(LinearSeconds(speed, kBytes, 10), 0.3162, 1e-4);  // half way in logarithms
  EXPECT_DOUBLE_EQ(LinearSeconds(speed, kBytes, 100), 1.0);
  EXPECT_DOUBLE_EQ(LinearSeconds(speed, kBytes, 300), 3.0);  // bound by arithmetic
}

TEST(HostProfile, KnowsTheSpeedOfWhatWasMeasured) {
  const RankSpeed speed = HandMadeProfile().SpeedOf(2, 1, 1);
  EXPECT_DOUBLE_EQ(speed.layer_us, 20);
  EXPECT_DOUBLE_EQ(speed.formats.front().linear.front().ns_per_byte, 0.2);
}

TEST(HostProfile, SharesOutTheNearestTotalAmongMoreRanks) {
  const RankSpeed speed = HandMadeProfile().SpeedOf(8, 1, 1);
  EXPECT_EQ(speed.ranks(), 8);
  EXPECT_DOUBLE_EQ(speed.layer_us, 4 * 20);
  EXPECT_DOUBLE_EQ(speed.formats.front().linear.front().ns_per_byte, 4 * 0.2);
  EXPECT_DOUBLE_EQ(speed.all_reduce_gb_s, 4.0 / 4);
}

TEST(HostProfile, GpusShareNothingWhileThereIsOneForEachRank) {
  const HostProfile profile = HandMadeGpuProfile();
  EXPECT_DOUBLE_EQ(profile.SpeedOf(1, 1, 8).layer_us, 10);  // whatever their threads
  EXPECT_DOUBLE_EQ(profile.SpeedOf(2, 1, 1).layer_us, 22);
  const RankSpeed crowded = profile.SpeedOf(8, 1, 1);
  EXPECT_DOUBLE_EQ(crowded.layer_us, 4 * 22);
  EXPECT_DOUBLE_EQ(crowded.all_reduces.front().us, 4 * 6);
}

TEST(AllReduceSecondsBeyondLayer, IsWhatLargerMessagesTakeLonger) {
  const RankSpeed speed = HandMadeGpuProfile().speeds[1];
  EXPECT_DOUBLE_EQ(AllReduceSecondsBeyondLayer(speed, 1000), 0);
  EXPECT_NEAR(AllReduceSecondsBeyondLayer(speed, 1048576), 10e-6, 1e-12);
  EXPECT_NEAR(AllReduceSecondsBeyondLayer(speed, 2 * 67108864), 794e-6, 1e-12);
  RankSpeed host = HandMadeProfile().speeds[1];
  EXPECT_DOUBLE_EQ(AllReduceSecondsBeyondLayer(host, 4e6), 1e-3);
}

}  // namespace
}  // namespace lockstep::plan
