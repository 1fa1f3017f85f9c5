#include "parallel/gpu_places.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kFour = {"A", "B", "C", "D"};

std::vector<RankGpus> OnOneHost(int num_ranks, const std::vector<std::string>& uuids,
                                int first_place = 0, int num_on_host = 0) {
  std::vector<RankGpus> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    ranks.push_back({0, "a", {first_place + rank, std::max(num_ranks, num_on_host)}, uuids});
  }
  return ranks;
}

void ExpectPlace(const std::vector<RankGpus>& ranks, int rank, int gpu, int num_sharing,
                 bool job_shares_gpus) {
  const auto place = PlaceOnGpu(ranks, rank);
  ASSERT_TRUE(place.ok()) << place.status();
  ASSERT_TRUE(place->has_value());
  EXPECT_EQ((*place)->gpu, gpu);
  EXPECT_EQ((*place)->num_sharing, num_sharing);
  EXPECT_EQ((*place)->job_shares_gpus, job_shares_gpus);
}

TEST(GpuPlacesTest, EachRankHasAGpu) {
  const auto ranks = OnOneHost(4, kFour);
  for (int rank = 0; rank < 4; ++rank) ExpectPlace(ranks, rank, rank, 1, false);
}

TEST(GpuPlacesTest, MoreRanksTakeTurns) {
  const auto ranks = OnOneHost(6, kFour);
  ExpectPlace(ranks, 1, 1, 2, true);
  ExpectPlace(ranks, 5, 1, 2, true);
  ExpectPlace(ranks, 3, 3, 1, true);
}

TEST(GpuPlacesTest, ReplicasHaveOthersOfTheHostsGpus) {
  ExpectPlace(OnOneHost(2, kFour, 2, 4), 0, 2, 1, false);
  ExpectPlace(OnOneHost(2, kFour, 2, 4), 1, 3, 1, false);
}

TEST(GpuPlacesTest, ReplicasThatShareGpusHavePartsOfTheirMemory) {
  ExpectPlace(OnOneHost(1, {"A"}, 1, 2), 0, 0, 2, false);
  ExpectPlace(OnOneHost(4, kFour, 4, 10), 0, 0, 3, false);
  ExpectPlace(OnOneHost(4, kFour, 4, 10), 3, 3, 2, false);
}

TEST(GpuPlacesTest, ALaunchersBindingIsKept) {
  std::vector<RankGpus> ranks = OnOneHost(3, {});
  for (size_t rank = 0; rank < 3; ++rank) ranks[rank].uuids = {kFour[rank]};
  for (int rank = 0; rank < 3; ++rank) ExpectPlace(ranks, rank, 0, 1, false);
  ranks[2].uuids = {"A"};
  ExpectPlace(ranks, 0, 0, 2, true);
  ExpectPlace(ranks, 1, 0, 1, true);
}

TEST(GpuPlacesTest, HostsAreApart) {
  std::vector<RankGpus> ranks = OnOneHost(2, {"A"});
  ranks[1] = {1, "b", {0, 1}, {"A"}};
  ranks[0].place = {0, 1};
  ExpectPlace(ranks, 0, 0, 1, false);
  ExpectPlace(ranks, 1, 0, 1, false);
}

TEST(GpuPlacesTest, AllOrNoneHaveGpus) {
  std::vector<RankGpus> ranks = OnOneHost(3, {});
  const auto none = PlaceOnGpu(ranks, 1);
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
  ranks[1].uuids = kFour;
  EXPECT_THAT(PlaceOnGpu(ranks, 2).status().message(),
              HasSubstr("rank 1 on a has a GPU, rank 0 on a has none"));
}

}  // namespace
}  // namespace lockstep
