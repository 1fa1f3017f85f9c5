#include "launcher/serving/preflight_summary.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Link = RankCheck::Link;

ControllerEvent Checked(const char* host, int node, int64_t needed, std::optional<Link> tp,
                        std::optional<Link> next) {
  ControllerEvent event;
  event.host = host;
  event.check = {node, needed, 8 << 20, tp, next};
  return event;
}

TEST(PreflightSummaryTest, TheSlowestRankSpeaksForItsStage) {
  const std::map<int, ControllerEvent> checks = {
      {0, Checked("a", 0, 1 << 20, Link{10, 4e9}, Link{100, 1e9})},
      {1, Checked("a", 0, 1 << 20, Link{12, 5e9}, Link{90, 0.9e9})},
      {2, Checked("b", 2, 1 << 20, Link{20, 3e9}, std::nullopt)},
      {3, Checked("b", 2, 2 << 20, Link{20, 3e9}, std::nullopt)}};
  const PreflightSummary summary = SummarizePreflight(2, 2, checks);
  EXPECT_THAT(PreflightLines(summary),
              ElementsAre("Checked  4 ranks, ranks 0-1 on a, ranks 2-3 on b; they take 3.0 MiB of "
                          "8.0 MiB free memory on b",
                          "  stage 0: all-reduce 12 us, 4.00 GB/s; to stage 1 100 us, 0.90 GB/s",
                          "  stage 1: all-reduce 20 us, 3.00 GB/s"));
  const auto json = PreflightJson(1, summary);
  EXPECT_EQ(json["replica"], 1);
  EXPECT_EQ(json["hosts"][1]["ranks"], (std::vector<int>{2, 3}));
  EXPECT_EQ(json["stages"][0]["to_next_stage"]["latency_us"], 100);
  EXPECT_TRUE(json["stages"][1]["to_next_stage"].is_null());
}

TEST(PreflightSummaryTest, OneHostIsToldOnce) {
  const PreflightSummary summary =
      SummarizePreflight(2, 1,
                         {{0, Checked("a", 0, 1 << 20, Link{10, 4e9}, std::nullopt)},
                          {1, Checked("a", 0, 1 << 20, Link{10, 4e9}, std::nullopt)}});
  EXPECT_THAT(PreflightLines(summary),
              ElementsAre("Checked  2 ranks, all on a; they take 2.0 MiB of 8.0 MiB free memory",
                          "  stage 0: all-reduce 10 us, 4.00 GB/s"));
}

TEST(PreflightSummaryTest, ARankAloneHasNothingToTell) {
  EXPECT_THAT(PreflightLines(SummarizePreflight(
                  1, 1, {{0, Checked("a", 0, 1 << 20, std::nullopt, std::nullopt)}})),
              IsEmpty());
}

TEST(PreflightSummaryTest, ManyHostsAreCutShort) {
  std::map<int, ControllerEvent> checks;
  for (int rank = 0; rank < 20; ++rank) {
    checks[rank] = Checked("h", rank, 1 << 20, std::nullopt, std::nullopt);
  }
  EXPECT_THAT(PreflightLines(SummarizePreflight(1, 20, checks))[0],
              ::testing::HasSubstr("and 12 more hosts"));
}

}  // namespace
}  // namespace lockstep
