#include "launcher/serving/last_words.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr char kReason[] = "rank 3 (stage 1): its stream closed";

LastWords OfALossOn(const std::string& host) {
  LastWords words;
  words.ranks = {"rank 0", "rank 1", "rank 2", "rank 3"};
  words.lost_host = host;
  words.lost_pid = 33;
  return words;
}

JobLine Killed(const std::string& host, int64_t pid) {
  return {.rank = 2, .text = FormatProcessKilled({host, pid, 9})};
}

TEST(LastWordsTest, MpirunsAreTheFirstToCount) {
  LastWords words = OfALossOn("b");
  EXPECT_TRUE(words.Hear({.rank = std::nullopt,
                          .text = "mpirun noticed that process rank 2 with PID 7 on node b exited "
                                  "on signal 11 (Segmentation fault)."}));
  EXPECT_TRUE(words.Hear(Killed("b", 33)));
  EXPECT_EQ(words.Explain(kReason), "rank 2: killed by signal 11 (Segmentation fault)");
}

// mpirun may see the others end before, and not tell of it.
TEST(LastWordsTest, RanksOfItsHostTellHowALostOneWasKilled) {
  LastWords words = OfALossOn("b");
  EXPECT_TRUE(words.Hear(Killed("a", 33)));
  EXPECT_TRUE(words.Hear(Killed("b", 34)));  // with the rest of the job
  EXPECT_EQ(words.Explain(kReason), kReason);
  EXPECT_TRUE(words.Hear({.rank = 1, .text = "lockstep worker: rank 1 on a: its peer is gone"}));
  EXPECT_EQ(words.Explain(kReason), absl::StrCat(kReason, " (rank 1 on a: its peer is gone)"));
  EXPECT_TRUE(words.Hear(Killed("b", 33)));
  EXPECT_EQ(words.Explain(kReason), absl::StrCat(kReason, "; it was killed by signal 9 (Killed)"));
}

TEST(LastWordsTest, WhatIsSeenHereIsAdded) {
  LastWords words = OfALossOn("a");
  words.process_state = "it is stopped";
  EXPECT_EQ(words.Explain(kReason), absl::StrCat(kReason, "; it is stopped"));
  words.process_state = "it was killed by signal 9 (Killed)";
  EXPECT_TRUE(words.Hear({.rank = 1, .text = "lockstep worker: rank 1 on a: its peer is gone"}));
  EXPECT_EQ(words.Explain(kReason), absl::StrCat(kReason, "; it was killed by signal 9 (Killed)"));
}

TEST(LastWordsTest, ABrokenInvariantIsNamed) {
  LastWords words = OfALossOn("a");
  EXPECT_FALSE(words.Hear({.rank = 3, .text = "[x.cc:7] lockstep: CHECK failed: a == b"}));
  EXPECT_EQ(words.Explain(kReason), absl::StrCat(kReason, " (rank 3: CHECK failed: a == b)"));
  words.killed = RankKilled{.rank = 3, .host = "a", .how = "killed by signal 6 (Aborted)"};
  EXPECT_EQ(words.Explain(kReason), "rank 3: killed by signal 6 (Aborted): CHECK failed: a == b");
}

TEST(LastWordsTest, AllElseIsForPeople) {
  LastWords words;
  EXPECT_FALSE(words.Hear({.rank = 0, .text = "a notice"}));
  EXPECT_FALSE(words.Hear({.rank = std::nullopt, .text = "mpirun: a notice"}));
  EXPECT_EQ(words.Explain(kReason), kReason);
}

}  // namespace
}  // namespace lockstep
