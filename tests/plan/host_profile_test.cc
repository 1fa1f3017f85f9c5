#include "deploy/plan/host_profile.h"

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/plan/hand_made_profile.h"

namespace lockstep::plan {
namespace {

using ::testing::HasSubstr;

TEST(HostProfile, ComesBackFromItsFile) {
  const HostProfile written = HandMadeProfile();
  const auto read = ParseHostProfile(HostProfileJson(written));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(HostProfileJson(*read), HostProfileJson(written));
  EXPECT_EQ(read->source(), "calibrated 2026-01-02 on elsewhere");
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
  const std::string good = HostProfileJson(HandMadeProfile());
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
        Nonsense{"AnotherVersion", "\"version\": 2", "\"version\": 1",
                 "version is 1; it must be a whole number from 2 to 2"},
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

}  // namespace
}  // namespace lockstep::plan
