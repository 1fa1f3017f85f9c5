// How rows are cut into groups, as seen by each rank.
#include "model/sampling/choice_groups.h"

#include "gtest/gtest.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/model/sampling/sampling_workload.h"

namespace lockstep {
namespace {

using testing::DeepWorkload;
using testing::PlainSequence;
using testing::RandomWorkload;
using testing::RankWorkload;
using testing::TopP;
using testing::Workload;

std::vector<ChoiceGroup> GroupsOf(const Workload& workload, int tp, int rank,
                                  const ChoiceLimits& limits = {}) {
  const auto backend = cuda::CudaBackend::Create({}).value();
  ShardedSizes sizes;
  sizes.vocab_size = workload.vocab_size;
  const RankWorkload mine(workload, VocabOf(sizes, tp, rank));
  const SamplerOptions options = {.vocab_size = workload.vocab_size,
                                  .eos_token_ids = workload.eos_token_ids};
  std::vector<RowShape> shapes;
  for (const LogitsRow& row : mine.rows()) {
    shapes.push_back(ShapeOf(row, options, NumVocabSlices(tp) / tp));
  }
  const auto groups = ChoiceGroups::Create(*backend, {.vocab_size = workload.vocab_size,
                                                      .tp = tp,
                                                      .tp_rank = rank,
                                                      .max_rows = std::ssize(shapes),
                                                      .limits = limits})
                          .value();
  groups->Begin({mine.rows(), shapes, workload.eos_token_ids}, {.tile_rows = 100});
  std::vector<ChoiceGroup> all;
  for (auto next = groups->PackNext(); !next.empty(); next = groups->PackNext()) {
    all.insert(all.end(), next.begin(), next.end());
  }
  backend->Synchronize();
  return all;
}

TEST(ChoiceGroups, AreTheSameOnAllRanks) {
  const Workload workload = RandomWorkload(61, 2000, 350);
  const std::vector<ChoiceGroup> first = GroupsOf(workload, 3, 0);
  int64_t next = 0;
  for (const ChoiceGroup& group : first) {
    EXPECT_EQ(group.rows.begin, next);
    EXPECT_EQ(group.rows.begin / 100, (group.rows.end - 1) / 100) << "of two tiles";
    EXPECT_LE(group.kept_rows, ChoiceLimits().kept_rows);
    next = group.rows.end;
  }
  EXPECT_EQ(next, 350);
  for (const int rank : {1, 2}) {
    const std::vector<ChoiceGroup> other = GroupsOf(workload, 3, rank);
    ASSERT_EQ(other.size(), first.size());
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_EQ(other[i].rows.begin, first[i].rows.begin);
      EXPECT_EQ(other[i].rows.end, first[i].rows.end);
      EXPECT_EQ(other[i].summaries.bytes, first[i].summaries.bytes);
      EXPECT_EQ(other[i].kept_rows, first[i].kept_rows);
      EXPECT_EQ(other[i].gathers_kept, first[i].gathers_kept);
      EXPECT_EQ(other[i].num_shared, first[i].num_shared);
    }
  }
}

TEST(ChoiceGroups, RowsThatCannotGoOnAreNotKept) {
  Workload workload = DeepWorkload(62, 2000, 100, TopP());
  for (size_t i = 0; i < 97; ++i) {
    SamplingParams& params = workload.sequences[i].params;
    (i % 2 == 0 ? params.temperature = 0.0f : params.top_k = 200);
  }
  const std::vector<ChoiceGroup> groups = GroupsOf(workload, 2, 1, {.gathered_bytes = 0});
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].num_jobs, 100);
  EXPECT_EQ(groups[0].kept_rows, 2) << "of three, on the rank that has most";
  EXPECT_EQ(groups[0].num_shared, 2);
  for (PlainSequence& sequence : workload.sequences) sequence.params.temperature = 0.0f;
  EXPECT_EQ(GroupsOf(workload, 2, 0)[0].kept_rows, 0);
  // A single rank reads them where they lie.
  EXPECT_EQ(GroupsOf(DeepWorkload(62, 2000, 100, TopP()), 1, 0)[0].kept_rows, 0);
}

TEST(ChoiceGroups, GatherKeptRowsWhileTheyAreShort) {
  constexpr int64_t kRowBytes = 1000 * 4;  // of each rank
  for (const int num_rows : {1, 3, 4}) {
    const Workload workload = DeepWorkload(64, 2000, num_rows, TopP());
    for (const int rank : {0, 1}) {
      const auto groups = GroupsOf(workload, 2, rank, {.gathered_bytes = 3 * kRowBytes});
      ASSERT_EQ(groups.size(), 1u);
      EXPECT_EQ(groups[0].gathers_kept, num_rows <= 3);
      EXPECT_EQ(groups[0].kept_rows, num_rows <= 3 ? num_rows : 2);
      EXPECT_EQ(groups[0].num_shared, num_rows <= 3 ? 0 : 2);
    }
  }
  // Of one sequence, and as many as there is memory for.
  EXPECT_TRUE(GroupsOf(DeepWorkload(65, 128256, 1, TopP()), 2, 0)[0].gathers_kept);
  EXPECT_TRUE(GroupsOf(DeepWorkload(65, 2000, 32, TopP()), 3, 0)[0].gathers_kept);
  EXPECT_FALSE(GroupsOf(DeepWorkload(65, 2000, 33, TopP()), 3, 0)[0].gathers_kept);
}

TEST(ChoiceGroups, TakeAdjustmentsOfDifferentTokensAlone) {
  Workload workload = DeepWorkload(63, 2000, 40, TopP());
  for (PlainSequence& sequence : workload.sequences) {
    sequence.params.top_k = 10;
    sequence.params.frequency_penalty = 0.5f;
    for (int32_t i = 0; i < 30000; ++i) sequence.prompt.push_back(i % 2000);
  }
  EXPECT_EQ(GroupsOf(workload, 2, 1).size(), 1u) << "prompts are not penalized";
  for (PlainSequence& sequence : workload.sequences) sequence.params.repetition_penalty = 1.1f;
  EXPECT_EQ(GroupsOf(workload, 2, 1).size(), 1u) << "nor more tokens than a rank has";
}

}  // namespace
}  // namespace lockstep
