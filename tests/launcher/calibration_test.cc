#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/calibration/probe_models.h"
#include "launcher/calibration/ranks_to_measure.h"
#include "model/checkpoint/model_shapes.h"

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

TEST(RanksToMeasure, GpusAreTakenAsFarAsTheyReach) {
  EXPECT_THAT(RanksToMeasureOnGpus(1, 16), ElementsAre(RanksAtWork{1, 1, 16}));
  EXPECT_THAT(RanksToMeasureOnGpus(3, 16),
              ElementsAre(RanksAtWork{1, 1, 16}, RanksAtWork{2, 1, 8}, RanksAtWork{1, 2, 8}));
  const std::vector<RanksAtWork> eight = RanksToMeasureOnGpus(8, 64);
  EXPECT_EQ(eight.size(), 9u);
  EXPECT_THAT(eight, Contains(RanksAtWork{8, 1, 8}));
  EXPECT_THAT(eight, Contains(RanksAtWork{2, 4, 8}));
  EXPECT_EQ(RanksToMeasureOnGpus(16, 64), eight);
}

TEST(RanksToMeasure, OneLayoutTakesAsManyOfItsStagesAsCompute) {
  EXPECT_THAT(RanksToMeasure(8, {.tp = 2, .pp = 2}),
              ElementsAre(RanksAtWork{2, 1, 2}, RanksAtWork{2, 2, 2}));
}

TEST(RanksToMeasure, ALayoutOfMoreRanksThanGpusIsRefused) {
  const plan::ProfiledDevice two{"cuda", "GPU", 1, 2};
  EXPECT_EQ(RanksToMeasure(two, 16, std::nullopt)->size(), 3u);
  EXPECT_EQ(RanksToMeasure(two, 16, plan::Layout{.tp = 2})->size(), 1u);
  EXPECT_EQ(RanksToMeasure(two, 16, plan::Layout{.tp = 2, .pp = 2}).status().message(),
            "tp 2 x pp 2 needs 4 GPUs; there are 2");
  EXPECT_TRUE(RanksToMeasure(plan::ProfiledDevice(), 1, plan::Layout{.tp = 4}).ok());
}

TEST(ProbeSizes, ContextsGoBeyondASteps) {
  for (const char* name : {"cpu", "cuda", "small"}) {
    const auto sizes = FindProbeSizes(name);
    ASSERT_TRUE(sizes.ok()) << sizes.status();
    EXPECT_GT(sizes->long_context, sizes->max_tokens) << name;
    EXPECT_LE(sizes->most_decodes, sizes->max_tokens) << name;
  }
  EXPECT_EQ(FindProbeSizes("huge").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ProbeSizes, NoCacheOfAGpuHoldsAnEighthOfALayer) {
  const ModelConfig config = *BuiltInShape(FindProbeSizes("cuda")->shape);
  const int64_t kv_width = config.num_kv_heads * config.head_dim;
  const int64_t weights =
      config.hidden_size * (2 * config.hidden_size + 2 * kv_width + 3 * config.intermediate_size);
  EXPECT_GT(FindProbeSizes("cuda")->num_layers_quick * 2 * weights / 8, int64_t{100} << 20);
}

}  // namespace
}  // namespace lockstep
