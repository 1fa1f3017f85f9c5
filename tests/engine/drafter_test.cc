#include "runtime/engine/drafter.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Tokens = std::vector<int32_t>;

// An output that grows, and its drafter.
class Draft {
 public:
  explicit Draft(Tokens prompt, Tokens prediction = {})
      : prediction_(std::move(prediction)), tokens_(std::move(prompt)), drafter_(tokens_.size()) {}

  Draft& Write(const Tokens& tokens) {
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    drafter_.Follow(sources());
    return *this;
  }
  Tokens Propose(int most = 3) const { return drafter_.Propose(sources(), most); }
  Drafter& drafter() { return drafter_; }
  OutputHistory& history() { return history_; }

 private:
  DraftSources sources() const { return {prediction_, tokens_, history_.Of("tenant")}; }
  OutputHistory history_;
  Tokens prediction_;
  Tokens tokens_;
  Drafter drafter_;
};

TEST(Drafter, QuotesWhatFollowedTheSameTokens) {
  EXPECT_THAT(Draft({1, 2, 3, 4, 5, 6, 9, 1}).Write({2}).Propose(), ElementsAre(3, 4, 5));
  EXPECT_THAT(Draft({1, 2, 3, 4, 5, 6, 9, 1}).Write({3}).Propose(), IsEmpty());
  EXPECT_THAT(Draft({1}).Write({}).Propose(), IsEmpty());
}

TEST(Drafter, OneTokenAloneIsNoReason) {
  EXPECT_THAT(Draft({1, 2, 3, 4}).Write({2}).Propose(), IsEmpty());
}

TEST(Drafter, ALongerMatchIsBetterAndThenANearerOne) {
  EXPECT_THAT(Draft({5, 1, 2, 30, 1, 2, 40, 7, 5, 1}).Write({2}).Propose(1), ElementsAre(30));
  EXPECT_THAT(Draft({1, 2, 30, 1, 2, 40, 7, 1}).Write({2}).Propose(1), ElementsAre(40));
}

TEST(Drafter, WhatRepeatsItselfGoesOnDoingSo) {
  EXPECT_THAT(Draft({7, 1, 2, 1}).Write({2}).Propose(4), ElementsAre(1, 2, 1, 2));
}

TEST(Drafter, StaysWhereItIsRight) {
  Draft draft({1, 2, 3, 4, 5, 6, 9, 1});
  draft.Write({2}).Write({3, 4});
  EXPECT_THAT(draft.Propose(2), ElementsAre(5, 6));
  EXPECT_THAT(draft.Write({8}).Propose(), IsEmpty());
}

TEST(Drafter, APredictionIsTheFirstGuess) {
  Draft draft({1, 2}, {10, 11, 12, 13});
  EXPECT_THAT(draft.Write({10}).Propose(), ElementsAre(11, 12, 13));
  // Some tokens differ, then it goes on.
  EXPECT_THAT(draft.Write({50}).Propose(), IsEmpty());
  EXPECT_THAT(draft.Write({11, 12}).Propose(), ElementsAre(13));
  EXPECT_THAT(draft.Write({13}).Propose(), IsEmpty());
}

TEST(Drafter, AnOutputThatGoesOnFindsItsPlaceAgain) {
  EXPECT_THAT(Draft({1, 2}, {10, 11, 12, 13}).Write({10, 11, 12}).Propose(), ElementsAre(13));
}

TEST(Drafter, EarlierOutputsAreQuotedUpToTheirEnd) {
  Draft draft({1, 2});
  draft.history().Add("tenant", Tokens{7, 8, 9, 10});
  draft.history().Add("other", Tokens{7, 8, 20});
  EXPECT_THAT(draft.Write({7, 8}).Propose(), ElementsAre(9, 10));
  EXPECT_THAT(draft.Write({9, 10}).Propose(), IsEmpty());
  // One's own text is nearer.
  EXPECT_THAT(draft.Write({30, 7, 8}).Propose(1), ElementsAre(9));
  EXPECT_THAT(draft.Write({40, 7, 8}).Propose(1), ElementsAre(40));
}

TEST(Drafter, APlaceThatIsForgottenIsLeft) {
  Draft draft({1, 2});
  draft.history().Add("tenant", Tokens{7, 8, 9, 10, 11, 12});
  draft.Write({7, 8});
  for (size_t i = 0; i < 2 * OutputHistory::kMaxTokens; i += 100) {
    draft.history().Add("tenant", Tokens(99, 50));
  }
  EXPECT_THAT(draft.Propose(), IsEmpty());
  EXPECT_THAT(draft.Write({9}).Propose(), IsEmpty());
}

TEST(OutputHistory, KeepsTheLastOutputsOfTheLastTenants) {
  OutputHistory history;
  EXPECT_TRUE(history.Of("a").tokens.empty());
  history.Add("a", Tokens{});
  EXPECT_TRUE(history.Of("a").tokens.empty());
  for (int i = 0; i < 1000; ++i) {
    history.Add("a", Tokens(OutputHistory::kMaxOutputTokens + 5, i));
    const HistoryView view = history.Of("a");
    EXPECT_LE(view.tokens.size(), 2 * OutputHistory::kMaxTokens);
    EXPECT_EQ(view.first_place + view.tokens.size(),
              (i + 1) * (OutputHistory::kMaxOutputTokens + 1));
    EXPECT_EQ(view.tokens.back(), OutputHistory::kEndOfOutput);
    EXPECT_EQ(view.tokens[view.tokens.size() - 2], i);
  }
  for (size_t i = 0; i < OutputHistory::kMaxTenants; ++i) {
    EXPECT_FALSE(history.Of("a").tokens.empty());
    history.Add(std::to_string(i), Tokens{1});
  }
  EXPECT_TRUE(history.Of("a").tokens.empty());
  EXPECT_FALSE(history.Of("0").tokens.empty());
  history.Add("0", Tokens{2});
  history.Add("a", Tokens{3});
  EXPECT_EQ(history.Of("0").tokens.size(), 4u);
  EXPECT_TRUE(history.Of("1").tokens.empty());
  EXPECT_GT(history.Of("a").first_place, history.Of("0").first_place);
}

TEST(Drafter, TrustGrowsWithWhatComesTrueAndShrinksWithWhatDoesNot) {
  Draft draft({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 90, 1});
  draft.Write({2});
  EXPECT_EQ(draft.Propose(100).size(), 4u);
  draft.drafter().Learn(4, 4);
  draft.Write({3, 4, 5, 6});
  EXPECT_EQ(draft.Propose(100).size(), 8u);
  draft.drafter().Learn(8, 2);
  draft.Write({7});
  EXPECT_EQ(draft.Propose(100).size(), 3u);
}

TEST(Drafter, WhatNeverComesTrueIsTriedEverMoreSeldom) {
  Draft draft({1, 2, 1, 2, 1});
  int num_proposals = 0;
  for (int i = 0; i < 1000; ++i) {
    draft.Write({i % 2 == 0 ? 2 : 1});
    if (!draft.drafter().is_ready()) continue;
    ++num_proposals;
    draft.drafter().Learn(1, 0);
  }
  EXPECT_GE(num_proposals, 10);
  EXPECT_LE(num_proposals, 25);
}

}  // namespace
}  // namespace lockstep::engine
