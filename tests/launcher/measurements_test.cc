#include "launcher/bench/measurements.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/quantile.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Time At(int64_t ms) { return absl::FromUnixMillis(1'000'000 + ms); }

TEST(QuantileTest, InterpolatesBetweenClosestRanks) {
  EXPECT_EQ(Quantile({}, 0.5), 0.0);
  EXPECT_EQ(Quantile({7.0}, 0.99), 7.0);
  EXPECT_DOUBLE_EQ(Quantile({1.0, 2.0}, 0.5), 1.5);
  EXPECT_DOUBLE_EQ(Quantile({1, 2, 3, 4, 5}, 0.0), 1.0);
  EXPECT_DOUBLE_EQ(Quantile({1, 2, 3, 4, 5}, 0.5), 3.0);
  EXPECT_DOUBLE_EQ(Quantile({1, 2, 3, 4, 5}, 0.9), 4.6);
  EXPECT_DOUBLE_EQ(Quantile({1, 2, 3, 4, 5}, 1.0), 5.0);
}

TEST(SummaryTest, DoesNotNeedSortedValues) {
  const Summary summary = Summarize({4, 1, 3, 2});
  EXPECT_EQ(summary.count, 4);
  EXPECT_DOUBLE_EQ(summary.mean, 2.5);
  EXPECT_DOUBLE_EQ(summary.p50, 2.5);
  EXPECT_DOUBLE_EQ(summary.max, 4.0);
}

TEST(RequestTimesTest, CountsFromTheArrival) {
  RequestTimes times(At(0));
  times.AddTokens(1, At(100));
  times.AddTokens(1, At(110));
  times.AddTokens(2, At(130));
  times.Finish(At(131));
  EXPECT_DOUBLE_EQ(times.ttft_ms(), 100.0);
  EXPECT_DOUBLE_EQ(*times.tpot_ms(), 10.0);  // 30 ms for three tokens after the first
  EXPECT_THAT(times.gaps_ms(), ElementsAre(10.0f, 10.0f, 10.0f));
  EXPECT_DOUBLE_EQ(times.end_to_end_ms(), 131.0);
}

TEST(RequestTimesTest, OneTokenHasNoTimePerLaterToken) {
  RequestTimes times(At(0));
  times.AddTokens(1, At(5));
  EXPECT_FALSE(times.tpot_ms().has_value());
  EXPECT_TRUE(times.gaps_ms().empty());
}

RequestTimes Request(int64_t arrival, int64_t first, int64_t last) {
  RequestTimes times(At(arrival));
  times.AddTokens(1, At(first));
  times.AddTokens(1, At(last));
  times.Finish(At(last));
  return times;
}

TEST(ReportTest, RatesCountFromFirstArrivalToLastCompletion) {
  Measurements measurements;
  measurements.AddCompleted(Request(0, 50, 100), 10);
  measurements.AddCompleted(Request(400, 450, 500), 30);
  measurements.AddFailed("RESOURCE_EXHAUSTED", "the queue is full");
  measurements.AddFailed("RESOURCE_EXHAUSTED", "still full");
  const BenchReport report = measurements.Report({});
  EXPECT_DOUBLE_EQ(report.seconds, 0.5);
  const auto json = report.ToJson();
  EXPECT_EQ(json["num_completed"], 2);
  EXPECT_EQ(json["num_failed"], 2);
  EXPECT_EQ(json["errors"]["RESOURCE_EXHAUSTED"], 2);
  EXPECT_EQ(json["first_reasons"]["RESOURCE_EXHAUSTED"], "the queue is full");
  EXPECT_THAT(report.ToText(), HasSubstr("RESOURCE_EXHAUSTED: 2, the first: the queue is full\n"));
  EXPECT_EQ(json["requests_per_second"], 4.0);
  EXPECT_EQ(json["output_tokens_per_second"], 8.0);
  EXPECT_EQ(json["total_tokens_per_second"], 88.0);
  EXPECT_EQ(json["ttft_ms"]["p50"], 50.0);
  EXPECT_FALSE(json.contains("goodput"));
}

TEST(ReportTest, GoodputCountsRequestsWithinBothLimits) {
  Measurements measurements;
  measurements.AddCompleted(Request(0, 50, 60), 1);    // TTFT 50, TPOT 10
  measurements.AddCompleted(Request(0, 150, 160), 1);  // TTFT too long
  measurements.AddCompleted(Request(0, 50, 1000), 1);  // TPOT too long
  const BenchReport report = measurements.Report({.ttft_ms = 100, .tpot_ms = 20});
  EXPECT_EQ(report.num_within_slo, 1);
  EXPECT_THAT(report.ToText(), HasSubstr("1.00 requests/s within the SLO (1 of 3)"));
}

TEST(ReportTest, ALimitThatWasNotGivenIsNull) {
  const auto goodput = Measurements().Report({.ttft_ms = 100}).ToJson()["goodput"];
  EXPECT_EQ(goodput["slo_ttft_ms"], 100.0);
  EXPECT_TRUE(goodput["slo_tpot_ms"].is_null());
}

TEST(ReportTest, NothingCompletedIsNotADivisionByZero) {
  Measurements measurements;
  measurements.AddFailed("UNAVAILABLE", "");
  EXPECT_EQ(measurements.Report({}).ToJson()["requests_per_second"], 0.0);
}

TEST(MeasurementsTest, EachRequestIsListedInTheOrderOfArrival) {
  Measurements measurements;
  RequestTimes late(At(500));
  late.AddTokens(1, At(520));
  late.Finish(At(521));
  RequestTimes early(At(0));
  early.AddTokens(1, At(100));
  early.AddTokens(1, At(900));
  early.Finish(At(901));
  measurements.AddCompleted(late, 3);
  measurements.AddCompleted(early, 3);
  const auto each = measurements.EachToJson();
  ASSERT_EQ(each.size(), 2u);
  EXPECT_EQ(each[0]["tpot_ms"], 800.0);
  EXPECT_EQ(each[1]["arrival_s"], 0.5);
  EXPECT_EQ(each[1]["ttft_ms"], 20.0);
  EXPECT_FALSE(each[1].contains("tpot_ms"));
}

}  // namespace
}  // namespace lockstep
