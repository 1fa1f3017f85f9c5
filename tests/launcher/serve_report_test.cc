#include "launcher/serving/serve_report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ModelSummary SummaryWithUnused(std::vector<std::string> names) {
  ModelSummary summary;
  summary.directory = "/models/small";
  summary.has_tokenizer = true;
  summary.config.eos_token_ids = {2};
  summary.unknown_tensors = std::move(names);
  return summary;
}

std::string ErrorsOf(const ModelSummary& summary) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  ServeReport(/*json=*/false, ModelFlags(), /*num_replicas=*/1).Model(summary, "small");
  ::testing::internal::GetCapturedStdout();
  return ::testing::internal::GetCapturedStderr();
}

TEST(ServeReportTest, WhatTextsMissIsWarnedOf) {
  ModelSummary summary = SummaryWithUnused({});
  summary.has_tokenizer = false;
  EXPECT_THAT(ErrorsOf(summary), HasSubstr("warning: no tokenizer.json"));
  summary = SummaryWithUnused({});
  summary.config.eos_token_ids.clear();
  EXPECT_THAT(ErrorsOf(summary), HasSubstr("warning: no end token"));
}

TEST(ServeReportTest, TensorsThatAreNotUsedAreCountedAndTheFirstNamed) {
  EXPECT_EQ(ErrorsOf(SummaryWithUnused({})), "");
  EXPECT_THAT(ErrorsOf(SummaryWithUnused({"adapter"})),
              HasSubstr("warning: 1 tensor of the checkpoint is not used: \"adapter\" ("));
  const std::string many = ErrorsOf(SummaryWithUnused({"a", "b", "c", "d", "e"}));
  EXPECT_THAT(many, HasSubstr("5 tensors of the checkpoint are not used: \"a\", \"b\", \"c\" and "
                              "2 more"));
  EXPECT_THAT(many, Not(HasSubstr("\"d\"")));
}

// What `tell` prints on standard output.
template <typename Tell>
std::string OutputOf(bool json, int num_replicas, const Tell& tell) {
  ::testing::internal::CaptureStdout();
  ServeReport report(json, ModelFlags(), num_replicas);
  tell(report);
  report.Flush();
  return ::testing::internal::GetCapturedStdout();
}

TEST(ServeReportTest, TheLayoutCountsReplicasAndThreadsWhereTheyAreKnown) {
  PlannedCapacity capacity;
  capacity.shards.resize(1);
  const auto plan = [&](std::optional<int> threads) {
    return [&, threads](ServeReport& report) { report.Plan(capacity, threads); };
  };
  EXPECT_THAT(OutputOf(false, 1, plan(2)),
              HasSubstr("Layout   tp 1 x pp 1 = 1 rank, 2 threads each\n"));
  EXPECT_THAT(OutputOf(false, 3, plan(std::nullopt)),
              HasSubstr("Layout   tp 1 x pp 1 x 3 replicas = 3 ranks\n"));
  const auto json = nlohmann::json::parse(OutputOf(true, 3, plan(std::nullopt)));
  EXPECT_EQ(json["replicas"], 3);
  EXPECT_TRUE(json["threads_per_rank"].is_null());
}

TEST(ServeReportTest, ARankByItselfHasNoLinksToTellOf) {
  const auto check = [](ServeReport& report) {
    ControllerEvent checked;
    checked.replica = 1;
    report.RankChecked(checked);
  };
  EXPECT_EQ(OutputOf(false, 2, check), "");
  EXPECT_THAT(OutputOf(true, 2, check), HasSubstr("\"event\":\"preflight\""));
}

TEST(ServeReportTest, RanksThatTakeAReplicaOverAreTold) {
  ControllerEvent joined;
  joined.epoch = 7;
  const auto serve = [&](ServeReport& report) {
    report.RankJoined(joined);
    report.Serving(joined, "127.0.0.1:1");
    joined.epoch = 9;
    report.RankJoined(joined);
    report.RankJoined(joined);
    report.Serving(joined, "127.0.0.1:1");
  };
  const std::string out = OutputOf(false, 1, serve);
  EXPECT_THAT(out, HasSubstr("Replaced ranks of epoch 7 by those of another job, epoch 9\n"));
  EXPECT_EQ(out.find("Replaced"), out.rfind("Replaced"));
  EXPECT_THAT(out, HasSubstr("Serving again after 0.0 s, epoch 9\n"));
}

TEST(ServeReportTest, TheWarningIsAnEventOfItsOwn) {
  ::testing::internal::CaptureStdout();
  ServeReport(/*json=*/true, ModelFlags(), /*num_replicas=*/1)
      .Model(SummaryWithUnused({"a"}), "small");
  const std::string out = ::testing::internal::GetCapturedStdout();
  const auto warning = nlohmann::json::parse(out.substr(out.find('\n') + 1));
  EXPECT_EQ(warning["event"], "warning");
  EXPECT_THAT(warning["message"].get<std::string>(), HasSubstr("1 tensor"));
}

}  // namespace
}  // namespace lockstep
