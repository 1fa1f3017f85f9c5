#include "runtime/worker/preflight.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu_backend_options.h"
#include "tests/parallel/run_ranks.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Two hosts with two ranks each, all in order.
std::vector<RankFacts> Facts() {
  std::vector<RankFacts> facts;
  for (const char* host : {"a", "a", "b", "b"}) {
    facts.push_back({host, host[0], 100, 1000});
  }
  return facts;
}

const ProcessGrid kGrid = *ProcessGrid::Create(2, 2);

TEST(PreflightFactsTest, RanksInOrderPass) { EXPECT_TRUE(CheckFacts(kGrid, Facts(), false).ok()); }

TEST(PreflightFactsTest, ASplitGroupIsRefusedUnlessAllowed) {
  std::vector<RankFacts> facts = Facts();
  std::swap(facts[1], facts[2]);
  EXPECT_THAT(std::string(CheckFacts(kGrid, facts, false).message()),
              HasSubstr("rank 0 on a, rank 1 on b"));
  EXPECT_TRUE(CheckFacts(kGrid, facts, true).ok());
}

TEST(PreflightFactsTest, MemoryCountsPerHost) {
  std::vector<RankFacts> facts = Facts();
  facts[2].needed_bytes = 900;  // with rank 3's: all of it
  EXPECT_TRUE(CheckFacts(kGrid, facts, false).ok());
  facts[2].needed_bytes = 901;
  const absl::Status status = CheckFacts(kGrid, facts, false);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("ranks 2-3"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("b has"));
}

// Of one GPU, too: what is available to a rank is its own.
TEST(PreflightFactsTest, MemoryOfGpusCountsPerRank) {
  std::vector<RankFacts> facts = Facts();
  for (RankFacts& fact : facts) {
    fact.gpu = 0;
    fact.needed_bytes = fact.available_bytes;
  }
  EXPECT_TRUE(CheckFacts(kGrid, facts, false).ok());
  ++facts[3].needed_bytes;
  EXPECT_THAT(std::string(CheckFacts(kGrid, facts, false).message()),
              HasSubstr("of rank 3 take 0.00 GiB, b's GPU 0 has"));
  facts[3].needed_bytes = 2 * facts[3].available_bytes + 1;
  EXPECT_THAT(std::string(CheckFacts(kGrid, facts, false).message()),
              HasSubstr("raise --gpu-memory-utilization, lower --kv-cache-gib if it was told, or "
                        "use 3 times as many GPUs"));
}

TEST(PreflightFactsTest, WhereOthersFillTheGpuNoLargerPartIsAdvised) {
  std::vector<RankFacts> facts = Facts();
  for (RankFacts& fact : facts) fact.gpu = 0;
  facts[3].needed_bytes = facts[3].available_bytes + 1;
  facts[3].foreign_bytes = int64_t{30} << 30;
  const std::string told(CheckFacts(kGrid, facts, false).message());
  EXPECT_THAT(told,
              HasSubstr("other programs and the driver hold 30.00 GiB of it (see nvidia-smi)"));
  EXPECT_THAT(told, Not(HasSubstr("--gpu-memory-utilization")));
}

TEST(PreflightFactsTest, CopiesOfBlocksTakeTheMemoryOfTheirHost) {
  std::vector<RankFacts> facts = Facts();
  for (RankFacts& fact : facts) {
    fact.gpu = 0;
    fact.offload_bytes = int64_t{4} << 30;
    fact.host_available_bytes = int64_t{8} << 30;
  }
  EXPECT_TRUE(CheckFacts(kGrid, facts, false).ok());
  ++facts[2].offload_bytes;
  const absl::Status status = CheckFacts(kGrid, facts, false);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("copies of KV blocks of ranks 2-3 take 8.00 GiB, b has 8.00 GiB of memory "
                        "available: lower --kv-offload-gib"));
  facts[2].offload_bytes = facts[3].offload_bytes = INT64_MAX;
  EXPECT_FALSE(CheckFacts(kGrid, facts, false).ok());
}

TEST(PreflightFactsTest, TheSmallestViewOfAHostCounts) {
  std::vector<RankFacts> facts = Facts();
  facts[1].available_bytes = 199;
  EXPECT_FALSE(CheckFacts(kGrid, facts, false).ok());
}

TEST(PreflightTest, EveryRankHearsOfAllInTheOrderOfRanks) {
  for (const auto& [tp, pp] : {std::pair{1, 1}, {3, 1}, {1, 3}, {2, 3}}) {
    SCOPED_TRACE(absl::StrCat(tp, " x ", pp));
    const ProcessGrid grid = *ProcessGrid::Create(tp, pp);
    testing::RunRanks(tp, pp, [&](int rank, RankGroups& groups) {
      const RankFacts mine = {absl::StrCat("host", rank), rank, rank, -rank};
      PreflightMemory memory;
      const auto facts = GatherFacts(grid, groups, mine, memory);
      if (!facts.ok()) return facts.status();
      EXPECT_EQ(std::ssize(*facts), grid.world_size());
      for (int other = 0; other < grid.world_size(); ++other) {
        const RankFacts& fact = (*facts)[static_cast<size_t>(other)];
        EXPECT_EQ(fact.host, absl::StrCat("host", other));
        EXPECT_EQ(fact.node, other);
        EXPECT_EQ(fact.needed_bytes, other);
        EXPECT_EQ(fact.available_bytes, -other);
      }
      return absl::OkStatus();
    });
  }
}

TEST(PreflightTest, EveryLinkIsMeasured) {
  for (const auto& [tp, pp] : {std::pair{1, 1}, {2, 1}, {1, 4}, {2, 2}, {3, 3}}) {
    SCOPED_TRACE(absl::StrCat(tp, " x ", pp));
    const ProcessGrid grid = *ProcessGrid::Create(tp, pp);
    testing::RunRanks(tp, pp, [&](int rank, RankGroups& groups) {
      const auto backend = MakeReferenceBackend();
      PreflightMemory memory;
      const auto speeds = MeasureLinks(groups, *backend, memory);
      if (!speeds.ok()) return speeds.status();
      EXPECT_EQ(speeds->tp.has_value(), grid.tp() > 1);
      EXPECT_EQ(speeds->next_stage.has_value(), grid.stage_of(rank) + 1 < grid.pp());
      for (const auto& link : {speeds->tp, speeds->next_stage}) {
        if (!link) continue;
        EXPECT_GT(link->latency, absl::ZeroDuration());
        EXPECT_GT(link->bytes_per_second, 0);
      }
      return absl::OkStatus();
    });
  }
}

TEST(PreflightTest, AllReducesAreMeasuredBySize) {
  testing::RunRanks(2, 1, [&](int, RankGroups& groups) {
    const auto backend = MakeReferenceBackend();
    const std::vector<int64_t> sizes = {4, 4096, int64_t{2} << 20};
    const auto times = MeasureAllReduces(*groups.tp, *backend, sizes);
    if (!times.ok()) return times.status();
    EXPECT_EQ(times->size(), sizes.size());
    for (const absl::Duration time : *times) EXPECT_GT(time, absl::ZeroDuration());
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace lockstep
