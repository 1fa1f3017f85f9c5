// Ranks tell each other of their GPUs; one of another version is named.
#include "launcher/ranks/rank_gpus_text.h"

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "kernels/base/version.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

RankGpus OnHost(int node, const std::string& host) {
  return {.node = node,
          .host = host,
          .place = {1, 2},
          .gpus = {{"GPU-1", "0000:1b:00.0"}, {"GPU-2", "0000:2b:00.0"}}};
}

TEST(RankGpusText, ComesBack) {
  RankGpus without = {.node = 1, .host = "b", .place = {0, 1}, .gpus = {}};
  without.why_none = "no driver";
  const std::vector<std::string> texts = {FormatRankGpus(OnHost(0, "a")), FormatRankGpus(without)};
  const auto ranks = ParseRankGpus(texts);
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  ASSERT_EQ(ranks->size(), 2u);
  EXPECT_EQ((*ranks)[0].host, "a");
  EXPECT_EQ((*ranks)[0].place.place, 1);
  ASSERT_EQ((*ranks)[0].gpus.size(), 2u);
  EXPECT_EQ((*ranks)[0].gpus[1].uuid, "GPU-2");
  EXPECT_EQ((*ranks)[0].gpus[1].bus_id, "0000:2b:00.0");
  EXPECT_EQ((*ranks)[1].node, 1);
  EXPECT_EQ((*ranks)[1].why_none, "no driver");
  EXPECT_TRUE((*ranks)[1].gpus.empty());
}

TEST(RankGpusText, AnotherVersionIsNamed) {
  std::vector<std::string> texts(2, FormatRankGpus(OnHost(0, "a")));
  texts[1] = absl::StrReplaceAll(texts[1], {{Version(), "0.0.9"}});
  const absl::Status status = ParseRankGpus(texts).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("rank 1 is of another lockstep, 0.0.9"));
  EXPECT_THAT(status.message(), HasSubstr(Version()));
}

TEST(RankGpusText, TheVersionTellsSourcesApart) {
  EXPECT_THAT(Version(), MatchesRegex("[0-9]+[.][0-9]+[.][0-9]+[+][0-9a-f]{12}"));
}

}  // namespace
}  // namespace lockstep
