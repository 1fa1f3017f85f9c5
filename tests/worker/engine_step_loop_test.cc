// The engine's plans run by real step loops: what each request gets must not depend on what else
// runs.
#include <algorithm>

#include "tests/worker/thread_replica.h"

namespace lockstep::testing {
namespace {

class EngineStepLoopTest : public ::testing::TestWithParam<Scenario> {};

TEST_P(EngineStepLoopTest, EachRequestGetsWhatItGetsAlone) {
  const std::vector<engine::EngineRequest> requests = RandomRequests(5, 30);
  ServeStats stats;
  const Outputs together = Serve<FakeStage>(GetParam(), requests, &stats);
  EXPECT_GT(stats.num_preemptions, 0u);
  ASSERT_EQ(together.size(), requests.size());
  for (const engine::EngineRequest& request : requests) {
    const Outputs alone = Serve<FakeStage>({.tp = 1, .pp = 1, .num_blocks = 100}, {request});
    EXPECT_EQ(together.at(request.request_id), alone.at(request.request_id))
        << "request " << request.request_id;
  }
}

TEST_P(EngineStepLoopTest, GuessesChangeNoToken) {
  const std::vector<engine::EngineRequest> requests = RandomRequests(7, 30);
  Scenario scenario = GetParam();
  const Outputs without = Serve<FakeStage>(scenario, requests);
  scenario.max_draft_tokens = 5;
  scenario.max_num_seqs = 40;
  ServeStats stats;
  EXPECT_EQ(Serve<FakeStage>(scenario, requests, &stats), without);
  EXPECT_GT(stats.num_drafts_accepted, 50u);
  EXPECT_GT(stats.num_drafts_refused, 20u);
}

TEST_P(EngineStepLoopTest, GreedyOutputsAreTheModelsContinuation) {
  for (const auto& request : RandomRequests(6, 8)) {
    if (request.sampling.temperature > 0) continue;
    const Outputs outputs = Serve<FakeStage>(GetParam(), {request});
    std::vector<int32_t> expected = FakeContinuation(request.prompt, request.sampling.max_tokens);
    const auto eos = std::find(expected.begin(), expected.end(), 2);
    if (eos != expected.end()) expected.erase(eos + 1, expected.end());
    EXPECT_EQ(outputs.at(request.request_id), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, EngineStepLoopTest,
                         ::testing::Values(Scenario{1, 1}, Scenario{2, 1}, Scenario{1, 2},
                                           Scenario{1, 3}, Scenario{2, 2}),
                         [](const auto& info) {
                           return "tp" + std::to_string(info.param.tp) + "_pp" +
                                  std::to_string(info.param.pp);
                         });

}  // namespace
}  // namespace lockstep::testing
