#include "runtime/worker/rank_identity.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/parallel/run_ranks.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

RankIdentity Identity(const std::string& host) {
  return {.host = host,
          .is_loaded = false,
          .version = "1.0",
          .model = "llama",
          .tokenizer = "00c0ffee",
          .device = "cuda",
          .dtype = "bf16",
          .deterministic = "off",
          .block_size = "16",
          .max_num_seqs = "256",
          .max_batched_tokens = "2048",
          .max_model_len = "4096",
          .fp8_weights = "none"};
}

// Two hosts with a stage each.
std::vector<RankIdentity> Identities() {
  return {Identity("a"), Identity("a"), Identity("b"), Identity("b")};
}

const ProcessGrid kTwoStages = *ProcessGrid::Create(2, 2);

TEST(RankIdentityTest, RanksThatAreAlikePass) {
  std::vector<RankIdentity> ranks = Identities();
  ranks[1].is_loaded = true;
  EXPECT_TRUE(CheckIdentities(kTwoStages, ranks).ok());
}

TEST(RankIdentityTest, WhatDiffersIsNamedWithBothRanksAndWhatToDo) {
  const auto told = [](std::string RankIdentity::*field, const char* value) {
    std::vector<RankIdentity> ranks = Identities();
    ranks[3].*field = value;
    const absl::Status status = CheckIdentities(kTwoStages, ranks);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(status.message());
  };
  EXPECT_EQ(told(&RankIdentity::version, "1.1"),
            "rank 3 on b has version 1.1, rank 0 on a has 1.0: install the same on all hosts");
  EXPECT_THAT(told(&RankIdentity::model, "other"), HasSubstr("with the same MODEL"));
  EXPECT_THAT(told(&RankIdentity::device, "cpu"), HasSubstr("the same --device"));
  EXPECT_EQ(told(&RankIdentity::dtype, "f32"),
            "rank 3 on b has dtype f32, rank 0 on a has bf16: start all ranks with the same "
            "--dtype and --kv-cache-dtype");
  EXPECT_EQ(told(&RankIdentity::deterministic, "on"),
            "rank 3 on b has --deterministic on, rank 0 on a has off: start all ranks with "
            "--deterministic, or all without");
  EXPECT_THAT(told(&RankIdentity::block_size, "8"), HasSubstr("the same --block-size"));
  EXPECT_THAT(told(&RankIdentity::max_num_seqs, "8"), HasSubstr("the same --max-num-seqs"));
  EXPECT_THAT(told(&RankIdentity::max_batched_tokens, "8"),
              HasSubstr("the same --max-batched-tokens"));
  EXPECT_THAT(told(&RankIdentity::max_model_len, "8"), HasSubstr("the same --max-model-len"));
  EXPECT_EQ(told(&RankIdentity::fp8_weights, "as numbers"),
            "rank 3 on b has FP8 weights as numbers, rank 2 on b has none: give the ranks of a "
            "stage GPUs of one kind");
}

TEST(RankIdentityTest, StagesMayHoldFp8WeightsEachInTheirWay) {
  std::vector<RankIdentity> ranks = Identities();
  ranks[0].fp8_weights = ranks[1].fp8_weights = "as stored";
  EXPECT_TRUE(CheckIdentities(kTwoStages, ranks).ok());
}

// Of programs that differ, nothing else means the same.
TEST(RankIdentityTest, AnotherVersionIsToldBeforeAllElse) {
  std::vector<RankIdentity> ranks = Identities();
  ranks[1].dtype = "f32";
  ranks[2].version = "2";
  EXPECT_THAT(std::string(CheckIdentities(kTwoStages, ranks).message()), HasSubstr("rank 2 on b"));
}

TEST(RankIdentityTest, EveryRankHearsOfAllInTheOrderOfRanks) {
  for (const auto& [tp, pp] : {std::pair{1, 1}, {3, 1}, {1, 3}, {2, 3}}) {
    SCOPED_TRACE(absl::StrCat(tp, " x ", pp));
    const ProcessGrid grid = *ProcessGrid::Create(tp, pp);
    testing::RunRanks(tp, pp, [&](int rank, RankGroups& groups) {
      RankIdentity mine = Identity(absl::StrCat("host", rank));
      mine.is_loaded = rank % 2 == 1;
      mine.fp8_weights = absl::StrCat(rank);
      IdentityExchange exchange;
      const auto all = exchange.Run(grid, groups, mine);
      if (!all.ok()) return all.status();
      EXPECT_EQ(std::ssize(*all), grid.world_size());
      for (int other = 0; other < grid.world_size(); ++other) {
        const RankIdentity& theirs = (*all)[static_cast<size_t>(other)];
        EXPECT_EQ(theirs.host, absl::StrCat("host", other));
        EXPECT_EQ(theirs.is_loaded, other % 2 == 1);
        EXPECT_EQ(theirs.fp8_weights, absl::StrCat(other));
        EXPECT_EQ(theirs.max_model_len, "4096");
      }
      return absl::OkStatus();
    });
  }
}

TEST(RankIdentityTest, LongTextsThatDifferAtTheirEndsStayDifferent) {
  testing::RunRanks(3, 1, [&](int rank, RankGroups& groups) {
    RankIdentity mine = Identity(std::string(5000, 'h'));
    mine.version = mine.model = mine.dtype = std::string(5000, 'v');
    if (rank == 2) mine.dtype.back() = 'w';
    IdentityExchange exchange;
    const ProcessGrid grid = *ProcessGrid::Create(3, 1);
    const auto all = exchange.Run(grid, groups, mine);
    if (!all.ok()) return all.status();
    EXPECT_EQ((*all)[0].version, (*all)[2].version);
    EXPECT_EQ((*all)[0].dtype, (*all)[1].dtype);
    EXPECT_THAT(std::string(CheckIdentities(grid, *all).message()), HasSubstr("rank 2 on hhh"));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace lockstep
