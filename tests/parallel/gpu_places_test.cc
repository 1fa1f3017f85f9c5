#include "parallel/gpu_places.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kFour = {"A", "B", "C", "D"};

std::vector<SeenGpu> Seen(const std::vector<std::string>& uuids) {
  std::vector<SeenGpu> gpus;
  for (const std::string& uuid : uuids) gpus.push_back({uuid, uuid + ":00.0"});
  return gpus;
}

std::vector<RankGpus> OnOneHost(int num_ranks, const std::vector<std::string>& uuids,
                                int first_place = 0, int num_on_host = 0) {
  std::vector<RankGpus> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    ranks.push_back({0, "a", {first_place + rank, std::max(num_ranks, num_on_host)}, Seen(uuids)});
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
  for (size_t rank = 0; rank < 3; ++rank) ranks[rank].gpus = Seen({kFour[rank]});
  for (int rank = 0; rank < 3; ++rank) ExpectPlace(ranks, rank, 0, 1, false);
  ranks[2].gpus = Seen({"A"});
  ExpectPlace(ranks, 0, 0, 2, true);
  ExpectPlace(ranks, 1, 0, 1, true);
}

TEST(GpuPlacesTest, HostsAreApart) {
  std::vector<RankGpus> ranks = OnOneHost(2, {"A"});
  ranks[1] = {1, "b", {0, 1}, Seen({"A"})};
  ranks[0].place = {0, 1};
  ExpectPlace(ranks, 0, 0, 1, false);
  ExpectPlace(ranks, 1, 0, 1, false);
}

TEST(GpuPlacesTest, AllOrNoneHaveGpus) {
  std::vector<RankGpus> ranks = OnOneHost(3, {});
  const auto none = PlaceOnGpu(ranks, 1);
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
  ranks[1].gpus = Seen(kFour);
  EXPECT_THAT(PlaceOnGpu(ranks, 2).status().message(),
              HasSubstr("rank 1 on a has a GPU, rank 0 on a has none: give"));
  ranks[0].why_none = "no driver";
  EXPECT_THAT(PlaceOnGpu(ranks, 2).status().message(), HasSubstr("has none (no driver): give"));
}

TEST(GpuPlacesTest, ALostGpuIsNotSharedInSilence) {
  std::vector<RankGpus> ranks = OnOneHost(4, kFour);
  EXPECT_TRUE(CheckSharing(ranks, false).ok());
  ranks = OnOneHost(4, {"A", "B", "D"});
  const absl::Status refused = CheckSharing(ranks, false);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  const std::string why(refused.message());
  EXPECT_THAT(why, HasSubstr("ranks 0, 3 on a would share the GPU A:00.0"));
  EXPECT_THAT(why, HasSubstr("of the 3 GPUs that are seen there (A:00.0, B:00.0, D:00.0)"));
  EXPECT_THAT(why, HasSubstr("--share-gpus"));
  EXPECT_TRUE(CheckSharing(ranks, true).ok());
}

TEST(GpuPlacesTest, OnSeveralHostsNoTwoRanksOfAJobShareAGpu) {
  std::vector<RankGpus> ranks = OnOneHost(2, {"A"});
  ranks.push_back({1, "b", {0, 1}, Seen({"B"})});
  for (const bool may_share : {false, true}) {
    EXPECT_THAT(std::string(CheckSharing(ranks, may_share).message()),
                HasSubstr("ranks 0-1 on a would share the GPU A:00.0"));
  }
  EXPECT_THAT(std::string(CheckSharing(ranks, true).message()), HasSubstr("all on one host"));
  // The same number on another host is another GPU.
  ranks = OnOneHost(1, {"A"});
  ranks.push_back({1, "b", {0, 1}, Seen({"A"})});
  EXPECT_TRUE(CheckSharing(ranks, false).ok());
}

TEST(GpuPlacesTest, ReplicasDoNotShareGpusInSilence) {
  EXPECT_TRUE(CheckSharing(OnOneHost(2, kFour, 2, 4), false).ok());
  const auto ranks = OnOneHost(2, {"A", "B", "C"}, 2, 4);
  EXPECT_THAT(std::string(CheckSharing(ranks, false).message()),
              HasSubstr("rank 1 on a, with 4 ranks of all replicas there, would share"));
  EXPECT_TRUE(CheckSharing(ranks, true).ok());
}

TEST(GpuPlacesTest, CpusAreShared) { EXPECT_TRUE(CheckSharing(OnOneHost(4, {}), false).ok()); }

}  // namespace
}  // namespace lockstep
