#include "tests/engine/random_workload.h"

#include "gtest/gtest.h"

namespace lockstep::engine {
namespace {

constexpr int kNumSeeds = 600;
constexpr int kNumRequests = 30;

void ExpectNothingLeft(EngineDriver& driver) {
  driver.ExpectSameAsAlone();
  const EngineStats stats = driver.engine().Stats();
  EXPECT_EQ(stats.blocks_in_use, 0);
  EXPECT_EQ(stats.num_waiting, 0);
  EXPECT_EQ(stats.num_running, 0);
  EXPECT_EQ(stats.steps_in_flight, 0);
  EXPECT_TRUE(driver.engine().Idle());
}

TEST(RandomWorkload, EveryOutputIsWhatItIsAlone) {
  uint64_t num_preemptions = 0, num_cached = 0, num_steps = 0, num_drafts = 0, num_accepted = 0;
  uint64_t num_offloaded = 0, num_restored = 0;
  for (int seed = 0; seed < kNumSeeds && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomWorkload workload(seed);
    EngineDriver driver(workload.config());
    workload.Run(driver, kNumRequests, /*may_lose_replica=*/false);
    ExpectNothingLeft(driver);
    num_preemptions += driver.engine().Stats().num_preemptions;
    num_cached += driver.engine().Stats().prompt_tokens_cached;
    num_steps += driver.engine().Stats().num_steps;
    num_drafts += driver.engine().Stats().draft_tokens;
    num_accepted += driver.engine().Stats().draft_tokens_accepted;
    num_offloaded += driver.engine().Stats().blocks_offloaded;
    num_restored += driver.engine().Stats().blocks_restored;
  }
  // The workloads do reach the hard parts.
  EXPECT_GT(num_preemptions, 100u);
  EXPECT_GT(num_cached, 1000u);
  EXPECT_GT(num_accepted, 1000u);
  EXPECT_GT(num_restored, 1000u);
  EXPECT_GT(num_offloaded, num_restored);
  EXPECT_GT(num_drafts, num_accepted + 500);
  RecordProperty("preemptions", static_cast<int>(num_preemptions));
  RecordProperty("restored_blocks", static_cast<int>(num_restored));
  RecordProperty("steps", static_cast<int>(num_steps));
}

TEST(RandomWorkload, LostReplicasAreInvisible) {
  for (int seed = 10000; seed < 10000 + kNumSeeds && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomWorkload workload(seed);
    EngineDriver driver(workload.config());
    workload.Run(driver, kNumRequests, /*may_lose_replica=*/true);
    ExpectNothingLeft(driver);
  }
}

TEST(RandomWorkload, SameSeedGivesSamePlans) {
  for (int seed = 0; seed < 50; ++seed) {
    std::vector<StepPlan> plans[2];
    for (auto& trace : plans) {
      RandomWorkload workload(seed);
      EngineDriver driver(workload.config());
      workload.Run(driver, kNumRequests, /*may_lose_replica=*/true);
      trace = driver.plans();
    }
    EXPECT_EQ(plans[0], plans[1]) << "seed " << seed;
  }
}

}  // namespace
}  // namespace lockstep::engine
