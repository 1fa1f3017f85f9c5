// The kernels of sums and gatherings over peer memory, with hand-made ranks that share a device.
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/cuda/peer_collectives.h"
#include "tests/parallel/collective_checks.h"
#include "tests/parallel/cuda/on_device.h"
#include "tests/support/cuda_emulation/emulation.h"

namespace lockstep::testing {
namespace {

using cuda::GatheredRows;
using cuda::OneShotRanks;
using cuda::PeerCollectives;
using cuda::TwoShotRanks;

constexpr int64_t kMostElements = PeerCollectives::kOneShotFloats;

// All ranks on one device, each with a stream and memory of its own.
class RanksOnOneDevice {
 public:
  explicit RanksOnOneDevice(int size) {
    cuda_emulation::SetDevice({});
    EXPECT_EQ(cudaHostAlloc(&aborted_, sizeof(uint32_t), cudaHostAllocMapped), cudaSuccess);
    *aborted_ = 0;
    one_shot.aborted = two_shot.aborted = aborted_;
    one_shot.size = two_shot.size = size;
    for (int rank = 0; rank < size; ++rank) {
      streams_.push_back(std::make_unique<Stream>());
      memories_.push_back(
          std::make_unique<OnDevice>(nullptr, sizeof(PeerCollectives::Memory), stream(rank)));
      auto* const memory = memories_.back()->as<PeerCollectives::Memory>();
      one_shot.memory[rank] = &memory->one_shot;
      two_shot.memory[rank] = &memory->two_shot;
      EXPECT_EQ(cudaMemset(memory, 0, sizeof(PeerCollectives::Memory)), cudaSuccess);
      EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    }
  }
  ~RanksOnOneDevice() {
    memories_.clear();
    streams_.clear();
    EXPECT_EQ(cudaFreeHost(aborted_), cudaSuccess);
    EXPECT_EQ(cuda_emulation::TakeFailure(), "");
    cuda_emulation::SetThreadOrder(0);
  }
  cudaStream_t stream(int rank) const { return streams_[static_cast<size_t>(rank)]->get(); }
  void Abort() { *aborted_ = 1; }

  OneShotRanks one_shot = {};
  TwoShotRanks two_shot = {};

 private:
  uint32_t* aborted_ = nullptr;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::unique_ptr<OnDevice>> memories_;
};

// The two-shot kernel or the other one.
class PeerSumKernelTest : public ::testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  static int size() { return std::get<0>(GetParam()); }
  static bool is_two_shot() { return std::get<1>(GetParam()); }
  // Data of `count` numbers that begins `offset` floats behind aligned memory.
  std::unique_ptr<OnDevice> MakeData(int rank, int64_t count, int64_t offset) {
    std::vector<float> numbers(static_cast<size_t>(offset + count + 1), kGuard);
    for (int64_t i = 0; i < count; ++i) {
      numbers[static_cast<size_t>(offset + i)] = RankValue(rank, i);
    }
    return std::make_unique<OnDevice>(numbers.data(), std::ssize(numbers) * 4, ranks_.stream(rank));
  }
  void Launch(int rank, float* data, int64_t count) {
    ranks_.one_shot.rank = ranks_.two_shot.rank = rank;
    const cudaStream_t stream = ranks_.stream(rank);
    EXPECT_EQ(is_two_shot() ? cuda::LaunchTwoShotSum(ranks_.two_shot, data, count, stream)
                            : cuda::LaunchOneShotSum(ranks_.one_shot, data, count, stream),
              cudaSuccess);
  }
  void ExpectSums(const OnDevice& data, int64_t count, int64_t offset, int rank) {
    std::vector<float> sums(static_cast<size_t>(offset + count + 1));
    data.ReadTo(sums.data());
    EXPECT_EQ(sums.back(), kGuard);
    for (int64_t i = 0; i < count; ++i) {
      const float sum = sums[static_cast<size_t>(offset + i)];
      const float expected = TreeSum(0, size(), i);
      ASSERT_TRUE(std::isnan(expected) ? std::isnan(sum) : SameBits(sum, expected))
          << "rank " << rank << ", element " << i << " of " << count;
    }
  }
  void SumOnAll(int64_t count, int64_t offset = 0) {
    std::vector<std::unique_ptr<OnDevice>> data;
    for (int rank = 0; rank < size(); ++rank) {
      data.push_back(MakeData(rank, count, offset));
      Launch(rank, data.back()->as<float>() + offset, count);
    }
    for (int rank = 0; rank < size(); ++rank) {
      ExpectSums(*data[static_cast<size_t>(rank)], count, offset, rank);
    }
  }

  static constexpr float kGuard = 77.0f;
  RanksOnOneDevice ranks_{size()};
};

TEST_P(PeerSumKernelTest, SumsAreTheTreeOfNeighboursToTheBit) {
  for (const int64_t count :
       {int64_t{1}, int64_t{3}, int64_t{4}, int64_t{5}, int64_t{63}, int64_t{1023}, int64_t{1024},
        int64_t{1025}, int64_t{4099}, int64_t{16383}, int64_t{40001}, kMostElements}) {
    SumOnAll(count);
  }
}

TEST_P(PeerSumKernelTest, AnyAlignmentOfTheData) {
  for (const int64_t offset : {1, 2, 3}) SumOnAll(2053, offset);
}

TEST_P(PeerSumKernelTest, NoThreadNeedsAnotherOrder) {
  for (const uint64_t order : {1, 2, 3}) {
    cuda_emulation::SetThreadOrder(order);
    SumOnAll(2053);
  }
}

// At 16,000 sums a second the count wraps around in three days.
template <typename Memory>
void SetMeetings(Memory* memory, uint32_t number) {
  std::vector<uint32_t> words(offsetof(Memory, slots) / sizeof(uint32_t), number);
  EXPECT_EQ(
      cudaMemcpy(memory, words.data(), words.size() * sizeof(uint32_t), cudaMemcpyHostToDevice),
      cudaSuccess);
}

TEST_P(PeerSumKernelTest, TheCountOfMeetingsWrapsAround) {
  for (int rank = 0; rank < size(); ++rank) {
    constexpr uint32_t kLast = std::numeric_limits<uint32_t>::max();
    SetMeetings(ranks_.one_shot.memory[rank], kLast - 1);
    SetMeetings(ranks_.two_shot.memory[rank], kLast - 3);
  }
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  for (int round = 0; round < 4; ++round) SumOnAll(2053);
}

// Who is done goes on to the next sum, of other numbers, while others still read of the one before.
TEST_P(PeerSumKernelTest, SumsFollowEachOther) {
  constexpr int64_t kCount = 3001;
  constexpr int kSums = 4;
  for (const uint64_t order : {0, 1}) {
    cuda_emulation::SetThreadOrder(order);
    std::vector<std::unique_ptr<OnDevice>> data;  // sum by sum, of all ranks
    for (int sum = 0; sum < kSums; ++sum) {
      const std::vector<float> numbers(kCount, static_cast<float>(sum + 1));
      for (int rank = 0; rank < size(); ++rank) {
        data.push_back(std::make_unique<OnDevice>(numbers.data(), kCount * 4, ranks_.stream(rank)));
      }
    }
    for (size_t i = 0; i < data.size(); ++i) {
      Launch(static_cast<int>(i) % size(), data[i]->as<float>(), kCount);
    }
    for (size_t i = 0; i < data.size(); ++i) {
      std::vector<float> sums(kCount);
      data[i]->ReadTo(sums.data());
      EXPECT_THAT(sums, ::testing::Each(static_cast<float>((i / size() + 1) * size())));
    }
  }
}

TEST_P(PeerSumKernelTest, AnAbortedWaitEnds) {
  const std::unique_ptr<OnDevice> data = MakeData(0, 2053, 0);
  Launch(0, data->as<float>(), 2053);
  EXPECT_EQ(cudaStreamQuery(ranks_.stream(0)), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(ranks_.stream(0)), cudaErrorNotReady);
  ranks_.Abort();
  EXPECT_EQ(cudaStreamSynchronize(ranks_.stream(0)), cudaSuccess);
}

INSTANTIATE_TEST_SUITE_P(OneShot, PeerSumKernelTest,
                         ::testing::Combine(::testing::Range(2, 9), ::testing::Values(false)));
INSTANTIATE_TEST_SUITE_P(TwoShots, PeerSumKernelTest,
                         ::testing::Combine(::testing::Values(2, 3, 5, 8),
                                            ::testing::Values(true)));

// Of more blocks than one shot has, and by all of them.
class TwoShotKernelTest : public PeerSumKernelTest {};

TEST_P(TwoShotKernelTest, LongSumsAreThatTreeToo) {
  for (int round = 0; round < 2; ++round) SumOnAll(66001 + round);
}

// So long that a thread loads, and stores, several times.
TEST_P(TwoShotKernelTest, SumsOfSeveralRoundsAreThatTreeToo) { SumOnAll(400003); }

INSTANTIATE_TEST_SUITE_P(Ranks, TwoShotKernelTest,
                         ::testing::Combine(::testing::Values(2, 3, 8), ::testing::Values(true)));

TEST(PeerSumLaunchTest, SizesBeyondTheSlotsAreRefused) {
  OneShotRanks one_shot = {};
  TwoShotRanks two_shot = {};
  const auto one = [&](int64_t count) {
    return cuda::LaunchOneShotSum(one_shot, nullptr, count, nullptr);
  };
  const auto two = [&](int64_t count) {
    return cuda::LaunchTwoShotSum(two_shot, nullptr, count, nullptr);
  };
  one_shot.size = two_shot.size = 2;
  EXPECT_EQ(one(0), cudaSuccess);
  EXPECT_EQ(one(kMostElements + 1), cudaErrorInvalidValue);
  EXPECT_EQ(two(0), cudaSuccess);
  EXPECT_EQ(two(PeerCollectives::kMaxFloats + 1), cudaErrorInvalidValue);
  one_shot.size = two_shot.size = 9;
  EXPECT_EQ(one(1), cudaErrorInvalidValue);
  EXPECT_EQ(two(1), cudaErrorInvalidValue);
}

class PeerGatherKernelTest : public ::testing::TestWithParam<int> {
 protected:
  static int size() { return GetParam(); }
  static std::byte ByteOf(int rank, int64_t i) {
    return static_cast<std::byte>(i * 37 + i / 251 + rank * 101 + 1);
  }
  // What a rank gathers into, filled with what stays, its own row in place. Rows begin `offset`
  // bytes behind aligned memory.
  std::unique_ptr<OnDevice> MakeRows(int rank, int64_t bytes, int64_t offset) {
    std::vector<std::byte> all(static_cast<size_t>(offset + size() * bytes + 1), kGuard);
    for (int64_t i = 0; i < bytes; ++i) {
      all[static_cast<size_t>(offset + rank * bytes + i)] = ByteOf(rank, i);
    }
    return std::make_unique<OnDevice>(all.data(), std::ssize(all), ranks_.stream(rank));
  }
  void Launch(int rank, const OnDevice& rows, int64_t bytes, int64_t offset) {
    ranks_.one_shot.rank = rank;
    std::byte* all = rows.as<std::byte>() + offset;
    EXPECT_EQ(cuda::LaunchOneShotGather(ranks_.one_shot, {all + rank * bytes, all, bytes},
                                        ranks_.stream(rank)),
              cudaSuccess);
  }
  void ExpectAllRows(const OnDevice& rows, int64_t bytes, int64_t offset) {
    std::vector<std::byte> all(static_cast<size_t>(offset + size() * bytes + 1));
    rows.ReadTo(all.data());
    EXPECT_EQ(all.back(), kGuard);
    if (offset > 0) {
      EXPECT_EQ(all[static_cast<size_t>(offset - 1)], kGuard);
    }
    for (int64_t i = 0; i < size() * bytes; ++i) {
      ASSERT_EQ(all[static_cast<size_t>(offset + i)],
                ByteOf(static_cast<int>(i / bytes), i % bytes))
          << "byte " << i % bytes << " of " << bytes << " of rank " << i / bytes;
    }
  }
  // offset_of: of a rank's rows.
  void GatherOnAll(int64_t bytes, const std::function<int64_t(int rank)>& offset_of) {
    std::vector<std::unique_ptr<OnDevice>> rows;
    for (int rank = 0; rank < size(); ++rank) {
      rows.push_back(MakeRows(rank, bytes, offset_of(rank)));
      Launch(rank, *rows.back(), bytes, offset_of(rank));
    }
    for (int rank = 0; rank < size(); ++rank) {
      ExpectAllRows(*rows[static_cast<size_t>(rank)], bytes, offset_of(rank));
    }
  }

  static constexpr std::byte kGuard{0xee};
  RanksOnOneDevice ranks_{size()};
};

TEST_P(PeerGatherKernelTest, EveryRankGetsAllRows) {
  for (const int64_t bytes :
       {1, 3, 7, 8, 9, 16, 2047, 2048, 2049, 4096, 4104, 16385, 65544, 147472, 262144}) {
    GatherOnAll(bytes, [](int) { return 0; });
  }
}

TEST_P(PeerGatherKernelTest, RanksMayDifferInTheAlignmentOfTheirRows) {
  GatherOnAll(4104, [](int rank) { return rank % 2 == 0 ? 0 : 3 * rank; });
}

TEST_P(PeerGatherKernelTest, NoThreadNeedsAnotherOrder) {
  for (const uint64_t order : {1, 2, 3}) {
    cuda_emulation::SetThreadOrder(order);
    GatherOnAll(4104, [](int) { return 0; });
  }
}

// Sums and gatherings use the same slots, in turn.
TEST_P(PeerGatherKernelTest, GatheringsAndSumsFollowEachOther) {
  constexpr int64_t kBytes = 4104;
  constexpr int kRounds = 3;
  std::vector<std::unique_ptr<OnDevice>> rows;
  std::vector<std::unique_ptr<OnDevice>> sums;
  const std::vector<float> ones(kBytes / 4, 1.0f);
  for (int i = 0; i < kRounds * size(); ++i) {
    rows.push_back(MakeRows(i % size(), kBytes, 0));
    sums.push_back(std::make_unique<OnDevice>(ones.data(), kBytes, ranks_.stream(i % size())));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const int rank = static_cast<int>(i) % size();
    Launch(rank, *rows[i], kBytes, 0);
    EXPECT_EQ(cuda::LaunchOneShotSum(ranks_.one_shot, sums[i]->as<float>(), std::ssize(ones),
                                     ranks_.stream(rank)),
              cudaSuccess);
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    ExpectAllRows(*rows[i], kBytes, 0);
    std::vector<float> sum(ones.size());
    sums[i]->ReadTo(sum.data());
    EXPECT_THAT(sum, ::testing::Each(static_cast<float>(size())));
  }
}

TEST_P(PeerGatherKernelTest, AnAbortedWaitEnds) {
  const std::unique_ptr<OnDevice> rows = MakeRows(0, 4104, 0);
  Launch(0, *rows, 4104, 0);
  EXPECT_EQ(cudaStreamQuery(ranks_.stream(0)), cudaErrorNotReady);
  ranks_.Abort();
  EXPECT_EQ(cudaStreamSynchronize(ranks_.stream(0)), cudaSuccess);
}

INSTANTIATE_TEST_SUITE_P(Ranks, PeerGatherKernelTest, ::testing::Range(2, 9));

TEST(PeerGatherLaunchTest, SizesBeyondTheSlotsAreRefused) {
  OneShotRanks ranks = {};
  const auto launch = [&](int64_t bytes) {
    return cuda::LaunchOneShotGather(ranks, {nullptr, nullptr, bytes}, nullptr);
  };
  ranks.size = 2;
  EXPECT_EQ(launch(0), cudaSuccess);
  EXPECT_EQ(launch(GatheredRows::kMaxBytes + 1), cudaErrorInvalidValue);
  EXPECT_EQ(launch(-8), cudaErrorInvalidValue);
  ranks.size = 9;
  EXPECT_EQ(launch(8), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace lockstep::testing
