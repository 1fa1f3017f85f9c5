#include "runtime/controller/served_load.h"

#include "gtest/gtest.h"

namespace lockstep {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

absl::Time At(double seconds) { return kStart + absl::Seconds(seconds); }

TEST(LoadMeter, NothingServedIsAllZeros) {
  const ServedLoad load = LoadMeter().Load();
  EXPECT_EQ(load.num_outputs, 0);
  EXPECT_EQ(load.ttft_ms, 0);
  EXPECT_EQ(load.tpot_ms, 0);
  EXPECT_EQ(load.mean_requests, 0);
}

TEST(LoadMeter, AveragesOverOutputsAndOverTokens) {
  LoadMeter meter;
  meter.FirstToken(absl::Milliseconds(100), 10);
  meter.FirstToken(absl::Milliseconds(300), 30);
  for (int i = 0; i < 3; ++i) meter.NextToken(absl::Milliseconds(20));
  meter.NextToken(absl::Milliseconds(60));
  const ServedLoad load = meter.Load();
  EXPECT_EQ(load.num_outputs, 2);
  EXPECT_DOUBLE_EQ(load.mean_prompt_tokens, 20);
  EXPECT_DOUBLE_EQ(load.mean_output_tokens, 3);
  EXPECT_DOUBLE_EQ(load.ttft_ms, 200);
  EXPECT_DOUBLE_EQ(load.tpot_ms, 30);
}

TEST(LoadMeter, TimeWithoutRequestsDoesNotCount) {
  LoadMeter meter;
  meter.Present(0, At(0));
  meter.Present(2, At(5));
  meter.Present(4, At(6));  // two for a second
  meter.Present(0, At(9));  // four for three
  meter.Present(0, At(100));
  EXPECT_DOUBLE_EQ(meter.Load().mean_requests, 14.0 / 4);
}

}  // namespace
}  // namespace lockstep
