#include "launcher/calibration/calibration.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::Le;
using ::testing::Not;

TEST(RanksToMeasure, OnTwoCoresGroupsAndStagesShareThem) {
  EXPECT_THAT(RanksToMeasure(2),
              ElementsAre(RanksAtWork{1, 1, 2}, RanksAtWork{2, 1, 1}, RanksAtWork{1, 1, 1},
                          RanksAtWork{1, 2, 1}, RanksAtWork{4, 1, 1}, RanksAtWork{2, 2, 1},
                          RanksAtWork{1, 4, 1}));
}

TEST(RanksToMeasure, OneCoreIsSharedByTwoRanksAtMost) {
  EXPECT_THAT(RanksToMeasure(1),
              ElementsAre(RanksAtWork{1, 1, 1}, RanksAtWork{2, 1, 1}, RanksAtWork{1, 2, 1}));
}

TEST(RanksToMeasure, OnManyCoresRanksHaveThreads) {
  const std::vector<RanksAtWork> cases = RanksToMeasure(64);
  EXPECT_THAT(cases, Contains(RanksAtWork{1, 1, 64}));
  EXPECT_THAT(cases, Contains(RanksAtWork{8, 1, 8}));
  EXPECT_THAT(cases, Contains(RanksAtWork{2, 1, 8}));  // one stage of four
  EXPECT_THAT(cases, Contains(RanksAtWork{2, 4, 8}));  // all of them
  EXPECT_THAT(cases, Not(Contains(RanksAtWork{1, 1, 8})));
  EXPECT_THAT(cases, Each(Field(&RanksAtWork::tp, Le(8))));
}

TEST(RanksToMeasure, OneLayoutTakesAsManyOfItsStagesAsCompute) {
  EXPECT_THAT(RanksToMeasure(8, {.tp = 2, .pp = 2}),
              ElementsAre(RanksAtWork{2, 1, 2}, RanksAtWork{2, 2, 2}));
}

}  // namespace
}  // namespace lockstep
