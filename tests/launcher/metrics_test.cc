#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "launcher/metrics/histogram_quantile.h"
#include "launcher/metrics/server_metrics.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(MetricFamilies, FollowTheTextFormat) {
  MetricFamilies families;
  families.Gauge("a_bytes", "Some bytes.", 1.5, {{"host", "x\\ \"y\"\n"}, {"rank", "0"}});
  families.Gauge("a_bytes", "Some bytes.", 2, {{"host", "b"}});
  families.Counter("b_total", "How often.", 3);
  EXPECT_EQ(families.Text(),
            "# HELP a_bytes Some bytes.\n"
            "# TYPE a_bytes gauge\n"
            "a_bytes{host=\"x\\\\ \\\"y\\\"\\n\",rank=\"0\"} 1.5\n"
            "a_bytes{host=\"b\"} 2\n"
            "# HELP b_total How often.\n"
            "# TYPE b_total counter\n"
            "b_total 3\n");
}

TEST(MetricFamilies, BucketsOfAHistogramAddUp) {
  v1::Histogram histogram;
  for (const double bound : {0.5, 2.0}) histogram.add_bounds(bound);
  for (const uint64_t count : {3, 0, 4}) histogram.add_counts(count);
  histogram.set_sum(12.5);
  MetricFamilies families;
  families.Histogram("t_seconds", "Time.", histogram);
  EXPECT_EQ(families.Text(),
            "# HELP t_seconds Time.\n"
            "# TYPE t_seconds histogram\n"
            "t_seconds_count 7\n"
            "t_seconds_sum 12.5\n"
            "t_seconds_bucket{le=\"0.5\"} 3\n"
            "t_seconds_bucket{le=\"2\"} 3\n"
            "t_seconds_bucket{le=\"+Inf\"} 7\n");
}

TEST(MetricFamilies, WhatIsNoHistogramIsLeftOut) {
  v1::Histogram histogram;
  MetricFamilies families;
  families.Histogram("none", "Of an older server.", histogram);
  histogram.add_bounds(1);
  histogram.add_counts(1);
  families.Histogram("short", "A bucket is missing.", histogram);
  EXPECT_EQ(families.Text(), "");
}

TEST(MetricFamilies, TextThatIsNotUtf8BecomesSo) {
  MetricFamilies families;
  families.Gauge("a", "A.", 1, {{"model", "x\xff"}});
  EXPECT_THAT(families.Text(), HasSubstr("x\xef\xbf\xbd\"} 1"));
}

v1::Histogram HistogramOf(const std::vector<double>& bounds, const std::vector<uint64_t>& counts) {
  v1::Histogram histogram;
  histogram.mutable_bounds()->Assign(bounds.begin(), bounds.end());
  histogram.mutable_counts()->Assign(counts.begin(), counts.end());
  return histogram;
}

TEST(HistogramQuantile, ValuesAreSpreadEvenlyOverTheirBucket) {
  const v1::Histogram histogram = HistogramOf({1, 2, 4}, {2, 0, 8, 0});
  EXPECT_EQ(HistogramQuantile(histogram, 0.1), 0.5);
  EXPECT_EQ(HistogramQuantile(histogram, 0.2), 1);
  EXPECT_EQ(HistogramQuantile(histogram, 0.6), 3);
  EXPECT_EQ(HistogramQuantile(histogram, 1), 4);
}

TEST(HistogramQuantile, BeyondTheLastBoundOnlyThatIsKnown) {
  EXPECT_EQ(HistogramQuantile(HistogramOf({1, 2}, {1, 0, 9}), 0.5), 2);
}

TEST(HistogramQuantile, OfNothingIsNothing) {
  EXPECT_EQ(HistogramQuantile(HistogramOf({1, 2}, {0, 0, 0}), 0.5), std::nullopt);
  EXPECT_EQ(HistogramQuantile(HistogramOf({}, {}), 0.5), std::nullopt);
  EXPECT_EQ(HistogramQuantile(HistogramOf({1, 2}, {1}), 0.5), std::nullopt);
}

// Numbers that no other field has.
void FillNumbers(google::protobuf::Message& message, double& next,
                 const std::set<std::string>& except, std::set<std::string>& expected) {
  using google::protobuf::FieldDescriptor;
  const auto& descriptor = *message.GetDescriptor();
  const auto& reflection = *message.GetReflection();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    if (field.is_repeated() || except.count(std::string(field.name())) > 0) continue;
    next += 1;
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT64:
        reflection.SetInt64(&message, &field, static_cast<int64_t>(next));
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        reflection.SetUInt64(&message, &field, static_cast<uint64_t>(next));
        break;
      default:
        continue;
    }
    expected.insert(absl::StrCat(" ", next, "\n"));
  }
}

TEST(ServerMetrics, TellEveryNumberOfTheStatus) {
  v1::GetStatusResponse status;
  double next = 1000;
  std::set<std::string> expected;
  FillNumbers(status, next, {"uptime_ms", "requests_rejected"}, expected);
  FillNumbers(*status.mutable_rejections(), next, {}, expected);  // its parts
  ASSERT_GE(expected.size(), 13u);
  status.set_uptime_ms(4321500);
  expected.insert("lockstep_uptime_seconds 4321.5\n");
  MetricFamilies families;
  AddServerMetrics({}, status, families);
  for (const std::string& number : expected) EXPECT_THAT(families.Text(), HasSubstr(number));
}

TEST(ServerMetrics, ExactlyOneStateIsOn) {
  for (const auto& [state, name] :
       {std::pair(v1::GetStatusResponse::STATE_SERVING, "serving"),
        std::pair(v1::GetStatusResponse::STATE_RECOVERING, "recovering"),
        std::pair(v1::GetStatusResponse::STATE_FAILED, "failed")}) {
    v1::GetStatusResponse status;
    status.set_state(state);
    MetricFamilies families;
    AddServerMetrics({}, status, families);
    for (const char* each : {"starting", "serving", "recovering", "draining", "failed"}) {
      EXPECT_THAT(families.Text(), HasSubstr(absl::StrCat("lockstep_state{state=\"", each, "\"} ",
                                                          each == std::string(name) ? 1 : 0)));
    }
  }
}

TEST(ServerMetrics, ReplicasAndRanksHaveTheirLabels) {
  v1::GetStatusResponse status;
  for (int replica = 0; replica < 2; ++replica) {
    v1::ReplicaStatus& one = *status.add_replicas();
    one.set_replica(replica);
    one.set_state(replica == 0 ? v1::ReplicaStatus::STATE_SERVING : v1::ReplicaStatus::STATE_LOST);
    one.set_num_losses(replica);
  }
  v1::RankStatus& rank = *status.add_ranks();
  rank.set_rank(3);
  rank.set_host("node7");
  rank.set_pid(77);
  rank.set_last_seen_ms_ago(250);
  rank.set_weight_bytes(1 << 20);
  status.add_ranks()->set_rank(4);  // is away
  MetricFamilies families;
  AddServerMetrics({}, status, families);
  const std::string text = families.Text();
  EXPECT_THAT(text, Not(HasSubstr("rank=\"4\"")));
  EXPECT_THAT(text, HasSubstr("lockstep_replica_serving{replica=\"0\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_replica_serving{replica=\"1\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_replica_losses_total{replica=\"1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_rank_last_seen_seconds"
                              "{replica=\"0\",rank=\"3\",host=\"node7\"} 0.25\n"));
  EXPECT_THAT(text, HasSubstr("rank=\"3\",host=\"node7\"} 1048576\n"));
}

TEST(ServerMetrics, TheJournalsFailureShows) {
  v1::GetStatusResponse status;
  MetricFamilies whole;
  AddServerMetrics({}, status, whole);
  EXPECT_THAT(whole.Text(), HasSubstr("lockstep_journal_failing 0\n"));
  status.set_journal_error("no space left");
  MetricFamilies failing;
  AddServerMetrics({}, status, failing);
  EXPECT_THAT(failing.Text(), HasSubstr("lockstep_journal_failing 1\n"));
  EXPECT_THAT(failing.Text(), Not(HasSubstr("no space left")));
}

}  // namespace
}  // namespace lockstep
