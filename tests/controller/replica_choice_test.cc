#include "runtime/controller/replica_choice.h"

#include <vector>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

int Chosen(const std::vector<ReplicaLoad>& loads) { return ChooseReplicaBy(loads); }

TEST(ReplicaChoiceTest, TheOneWithTheLeastToCompute) {
  EXPECT_EQ(Chosen({{}}), 0);
  EXPECT_EQ(Chosen({{}, {}}), 0);
  EXPECT_EQ(Chosen({{.num_uncomputed_tokens = 10}, {.num_uncomputed_tokens = 9}}), 1);
  EXPECT_EQ(Chosen({{.num_sequences = 2}, {.num_sequences = 1}}), 1);
  EXPECT_EQ(Chosen({{.num_sequences = 1}, {.num_sequences = 60, .num_cached_tokens = 1000}}), 1);
  EXPECT_EQ(Chosen({{.num_sequences = 1}, {.num_sequences = 60, .num_cached_tokens = 900}}), 0);
}

TEST(ReplicaChoiceTest, ACachedPrefixIsNotWorthACrowd) {
  const auto with = [](int64_t here, int64_t there) {
    return Chosen(
        {{.num_sequences = here, .num_cached_tokens = 1 << 20}, {.num_sequences = there}});
  };
  EXPECT_EQ(with(64, 0), 0);
  EXPECT_EQ(with(65, 0), 1);
  EXPECT_EQ(with(300, 200), 0) << "half as many again";
  EXPECT_EQ(with(301, 200), 1);
}

TEST(ReplicaChoiceTest, ACachedPrefixIsNotWorthWaitingForASlot) {
  EXPECT_EQ(Chosen({{.has_room = false, .num_cached_tokens = 1 << 20}, {.num_sequences = 60}}), 1);
  EXPECT_EQ(Chosen({{.has_room = false, .num_cached_tokens = 1 << 20}, {.has_room = false}}), 0);
}

TEST(ReplicaChoiceTest, AFullQueueIsTheLastChoice) {
  EXPECT_EQ(Chosen({{.queue_is_full = true}, {.num_sequences = 1000}}), 1);
  EXPECT_EQ(Chosen({{.queue_is_full = true, .num_sequences = 9}, {.queue_is_full = true}}), 1);
}

}  // namespace
}  // namespace lockstep
