// A stage on every rank of an MPI job gives the bits that one rank alone gives. Runs under mpirun.
#include <random>

#include "gtest/gtest.h"
#include "parallel/mpi_communicator.h"
#include "tests/model/llama/stage_driver.h"
#include "tests/model/llama/temporary_model.h"
#include "tests/parallel/mpi_test_main.h"

namespace lockstep::testing {
namespace {

class MpiLayoutTest : public ::testing::TestWithParam<DType> {};

TEST_P(MpiLayoutTest, EveryLayoutOfTheJobGivesTheBitsOfOneRank) {
  const TemporaryModel model(SmallConfig(/*num_kv_heads=*/2), GetParam());
  std::mt19937 random(5);
  std::vector<int32_t> prompt(140);
  for (int32_t& token : prompt) token = static_cast<int32_t>(random() % 515);
  const std::vector<Request> requests = {{prompt, 6}, {{1, 2, 3}, 10}};
  DriveOptions options;
  options.make_backend = CpuBackends(1);
  options.stage.limits = {
      .max_batched_tokens = 64, .max_num_seqs = 2, .max_model_len = 200, .block_size = 16};
  const auto alone = Drive(model.checkpoint(), options, requests);
  ASSERT_TRUE(alone.ok()) << alone.status();
  const int world = TestSession().world_size();
  for (int tp = 1; tp <= world; tp *= 2) {
    if (world % tp != 0 || world / tp > 3) continue;
    for (const bool apart : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "tp " << tp << " pp " << world / tp << " " << apart);
      options.stages_lie_apart = apart;
      options.most_undivided_bytes = apart ? std::optional<int64_t>(0) : std::nullopt;
      const ProcessGrid grid = *ProcessGrid::Create(tp, world / tp);
      auto groups = MakeMpiGroups(TestSession(), grid);
      ASSERT_TRUE(groups.ok()) << groups.status();
      EXPECT_EQ(groups->most_whole_bytes_to_next, INT64_MAX) << "all of this job is one host";
      EXPECT_EQ(groups->most_whole_bytes_from_previous, INT64_MAX);
      const auto outcomes =
          DriveRank(model.checkpoint(), grid, TestSession().rank(), *groups, options, requests);
      ASSERT_TRUE(outcomes.ok()) << outcomes.status();
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ((*outcomes)[i].greedy, (*alone)[i].greedy);
      }
      if (grid.stage_of(TestSession().rank()) == grid.pp() - 1) {
        EXPECT_TRUE(SameBits(*outcomes, *alone));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, MpiLayoutTest, ::testing::Values(DType::kF32, DType::kBF16));

}  // namespace
}  // namespace lockstep::testing
