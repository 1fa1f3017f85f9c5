// Sums over peer memory: their kernels with hand-made ranks, and groups whose ranks are threads
// with an emulated device each. Between processes: device_ranks_test.cc.
#include "parallel/cuda/peer_sum.h"

#include <atomic>
#include <cstdlib>
#include <limits>
#include <tuple>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_status.h"
#include "parallel/cuda/nccl_communicator.h"
#include "tests/parallel/collective_checks.h"
#include "tests/parallel/cuda/on_device.h"
#include "tests/parallel/cuda/run_devices.h"

namespace lockstep::testing {
namespace {

using cuda::CudaStatus;
using cuda::MakeNcclCommunicator;
using cuda::NcclOptions;
using cuda::OneShotRanks;
using cuda::PeerSum;
using cuda::TwoShotRanks;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMost = PeerSum::kOneShotFloats;

// All ranks on one device, each with a stream and memory of its own; the two-shot kernel or the
// other one.
class PeerSumKernelTest : public ::testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  void SetUp() override {
    cuda_emulation::SetDevice({});
    ASSERT_EQ(cudaHostAlloc(&aborted_, sizeof(uint32_t), cudaHostAllocMapped), cudaSuccess);
    *aborted_ = 0;
    one_shot_.aborted = two_shot_.aborted = aborted_;
    one_shot_.size = two_shot_.size = size();
    for (int rank = 0; rank < size(); ++rank) {
      memories_.push_back(
          std::make_unique<OnDevice>(nullptr, sizeof(PeerSum::Memory), stream(rank)));
      auto* const memory = memories_.back()->as<PeerSum::Memory>();
      one_shot_.memory[rank] = &memory->one_shot;
      two_shot_.memory[rank] = &memory->two_shot;
      EXPECT_EQ(cudaMemset(memory, 0, sizeof(PeerSum::Memory)), cudaSuccess);
      EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    }
  }
  void TearDown() override {
    memories_.clear();
    streams_.clear();
    EXPECT_EQ(cudaFreeHost(aborted_), cudaSuccess);
    EXPECT_EQ(cuda_emulation::TakeFailure(), "");
    cuda_emulation::SetThreadOrder(0);
  }
  static int size() { return std::get<0>(GetParam()); }
  static bool is_two_shot() { return std::get<1>(GetParam()); }
  cudaStream_t stream(int rank) {
    while (static_cast<int>(streams_.size()) <= rank)
      streams_.push_back(std::make_unique<Stream>());
    return streams_[static_cast<size_t>(rank)]->get();
  }
  // Data of `count` numbers that begins `offset` floats behind aligned memory.
  std::unique_ptr<OnDevice> MakeData(int rank, int64_t count, int64_t offset) {
    std::vector<float> numbers(static_cast<size_t>(offset + count + 1), kGuard);
    for (int64_t i = 0; i < count; ++i) {
      numbers[static_cast<size_t>(offset + i)] = RankValue(rank, i);
    }
    return std::make_unique<OnDevice>(numbers.data(), std::ssize(numbers) * 4, stream(rank));
  }
  void Launch(int rank, float* data, int64_t count) {
    one_shot_.rank = two_shot_.rank = rank;
    EXPECT_EQ(is_two_shot() ? cuda::LaunchTwoShotSum(two_shot_, data, count, stream(rank))
                            : cuda::LaunchOneShotSum(one_shot_, data, count, stream(rank)),
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
  uint32_t* aborted_ = nullptr;
  OneShotRanks one_shot_ = {};
  TwoShotRanks two_shot_ = {};
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::unique_ptr<OnDevice>> memories_;
};

TEST_P(PeerSumKernelTest, SumsAreTheTreeOfNeighboursToTheBit) {
  for (const int64_t count :
       {int64_t{1}, int64_t{3}, int64_t{4}, int64_t{5}, int64_t{63}, int64_t{1023}, int64_t{1024},
        int64_t{1025}, int64_t{4099}, int64_t{16383}, int64_t{40001}}) {
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
    SetMeetings(one_shot_.memory[rank], kLast - 1);
    SetMeetings(two_shot_.memory[rank], kLast - 3);
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
        data.push_back(std::make_unique<OnDevice>(numbers.data(), kCount * 4, stream(rank)));
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
  EXPECT_EQ(cudaStreamQuery(stream(0)), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(stream(0)), cudaErrorNotReady);
  *aborted_ = 1;
  EXPECT_EQ(cudaStreamSynchronize(stream(0)), cudaSuccess);
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
  EXPECT_EQ(one(kMost + 1), cudaErrorInvalidValue);
  EXPECT_EQ(two(0), cudaSuccess);
  EXPECT_EQ(two(PeerSum::kMaxFloats + 1), cudaErrorInvalidValue);
  one_shot.size = two_shot.size = 9;
  EXPECT_EQ(one(1), cudaErrorInvalidValue);
  EXPECT_EQ(two(1), cudaErrorInvalidValue);
}

NcclOptions OwnSums() {
  NcclOptions options;
  options.connect_bytes = 4096;
  options.own_sums = true;
  options.notice = [](const std::string& text) { ADD_FAILURE() << text; };
  return options;
}

using PeerSumGroupTest = ::testing::TestWithParam<int>;
class LongPeerSumGroupTest : public PeerSumGroupTest {};

// NCCL, as emulated, adds in another order: these sums are not its own. Those beyond 256 KiB are.
TEST_P(PeerSumGroupTest, SumsOfAllSizesAgree) {
  RunDevices(GetParam(), [](int, Communicator& host) -> absl::Status {
    const Stream stream;
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                     MakeNcclCommunicator(host, stream.get(), OwnSums()));
    FromHost from_host(*group, stream.get());
    for (const int64_t count : {int64_t{1}, int64_t{1023}, int64_t{5000}, kMost - 1, kMost}) {
      RETURN_IF_ERROR(CheckAllReduce(from_host, count));
    }
    std::vector<float> ones(kMost + 1, 1.0f);
    RETURN_IF_ERROR(from_host.AllReduceSum(ones.data(), kMost + 1));
    EXPECT_THAT(ones, ::testing::Each(static_cast<float>(host.size())));
    return group->Health();
  });
}

// Ours, whoever would be faster.
TEST_P(LongPeerSumGroupTest, LongDeterministicSumsAreThatTreeToo) {
  RunDevices(GetParam(), [](int, Communicator& host) -> absl::Status {
    const Stream stream;
    NcclOptions options = OwnSums();
    options.deterministic = true;
    options.workspace_bytes = 100000;
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                     MakeNcclCommunicator(host, stream.get(), options));
    FromHost from_host(*group, stream.get());
    RETURN_IF_ERROR(CheckAllReduce(from_host, kMost + 1));
    RETURN_IF_ERROR(CheckReduceScatter(from_host, kMost));
    return group->Health();
  });
}

// It goes at once, without an exchange that the other's first one would take for its own.
TEST(PeerSumGroupStartTest, ARankWithoutMemoryEndsIt) {
  RunDevices(2, [](int rank, Communicator& host) -> absl::Status {
    const Stream stream;
    NcclOptions options = OwnSums();
    if (rank == 1) options.connect_bytes = int64_t{1} << 40;
    options.patience = options.start_patience = std::chrono::milliseconds(1000);
    const absl::Status status = MakeNcclCommunicator(host, stream.get(), options).status();
    if (rank == 1) {
      EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
      // In whichever of its first sums it learns of it, none of which met the other's barrier.
      EXPECT_THAT(std::string(status.message()), HasSubstr("remote process exited"));
    }
    EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
    return absl::OkStatus();
  });
}

// Which, on the emulation, may come out either way.
TEST_P(LongPeerSumGroupTest, LongSumsAreTried) {
  RunDevices(GetParam(), [](int, Communicator& host) -> absl::Status {
    const Stream stream;
    NcclOptions options = OwnSums();
    options.connect_bytes = 600 << 10;
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                     MakeNcclCommunicator(host, stream.get(), options));
    std::vector<float> ones(2 * kMost, 1.0f);
    RETURN_IF_ERROR(FromHost(*group, stream.get()).AllReduceSum(ones.data(), std::ssize(ones)));
    EXPECT_THAT(ones, ::testing::Each(static_cast<float>(host.size())));
    return group->Health();
  });
}

// A recorded sum counts on from wherever its group has come to.
TEST_P(PeerSumGroupTest, GraphsReplaySums) {
  RunDevices(GetParam(), [](int, Communicator& host) -> absl::Status {
    const Stream stream;
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                     MakeNcclCommunicator(host, stream.get(), OwnSums()));
    const std::vector<float> ones(3000, 1.0f);
    const OnDevice data(ones.data(), 12000, stream.get());
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
    RETURN_IF_ERROR(group->AllReduceSum(data.as<float>(), 3000));
    RETURN_IF_ERROR(group->AllReduceSum(data.as<float>(), 17));
    EXPECT_EQ(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&exec, graph), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    float factor = 1;
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ(cudaGraphLaunch(exec, stream.get()), cudaSuccess);
      RETURN_IF_ERROR(group->AllReduceSum(data.as<float>(), 3000));
      factor *= static_cast<float>(host.size() * host.size());
    }
    std::vector<float> sums(3000);
    data.ReadTo(sums.data());
    EXPECT_EQ(sums[2999], factor);
    EXPECT_EQ(sums[0], factor * static_cast<float>(host.size() * host.size() * host.size()));
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    return group->Health();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, LongPeerSumGroupTest, ::testing::Values(2, 3));
INSTANTIATE_TEST_SUITE_P(Ranks, PeerSumGroupTest, ::testing::Values(2, 3, 4, 8));

// A rank waits in a kernel for one that never comes; the group's end lets it go.
TEST(PeerSumEndTest, TheEndOfTheGroupEndsTheKernelsWait) {
  RunDevices(2, [](int rank, Communicator& host) -> absl::Status {
    const Stream stream;
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                     MakeNcclCommunicator(host, stream.get(), OwnSums()));
    if (rank == 0) {
      const OnDevice data(nullptr, 4000, stream.get());
      RETURN_IF_ERROR(group->AllReduceSum(data.as<float>(), 1000));
      std::thread watchdog([&] {
        std::this_thread::sleep_for(milliseconds(30));
        group->Abort();
      });
      EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
      watchdog.join();
      EXPECT_THAT(
          group->Health().message(),
          AllOf(HasSubstr("rank 0 of 2: one-shot all-reduce of 4000 bytes"), HasSubstr("aborted")));
      EXPECT_EQ(group->AllReduceSum(data.as<float>(), 1000).code(), absl::StatusCode::kUnavailable);
    }
    return host.Barrier();
  });
}

// Why there are no one-shot sums on `pretended` devices.
std::string Refusal(int num_ranks, cuda_emulation::Device pretended, bool is_other_machine) {
  std::string reason;
  RunDevices(
      num_ranks,
      [&](int rank, Communicator& host) -> absl::Status {
        const Stream stream;
        const std::string machine = is_other_machine && rank == 1 ? "elsewhere" : "here";
        const auto sum = PeerSum::Create(host, stream.get(), {.machine = machine});
        EXPECT_EQ(sum.status().code(), absl::StatusCode::kFailedPrecondition);
        if (rank == 0) reason = std::string(sum.status().message());
        return host.Barrier();
      },
      pretended);
  return reason;
}

TEST(PeerSumRefusalTest, AllRanksLearnTheSameReason) {
  EXPECT_EQ(Refusal(2, {}, /*is_other_machine=*/true), "rank 0: rank 1 is on another host");
  EXPECT_EQ(Refusal(2, {.reach_each_other = false}, false),
            "rank 0: GPU 0 has no peer access to GPU 1");
  EXPECT_EQ(Refusal(2, {.has_ipc = false}, false), "rank 0: CUDA IPC: operation not supported");
  EXPECT_EQ(Refusal(9, {}, false), "rank 0: 9 ranks, at most 8 add up by themselves");
  ASSERT_EQ(setenv("NCCL_P2P_DISABLE", "1", 1), 0);
  EXPECT_EQ(Refusal(2, {}, false), "rank 0: NCCL_P2P_DISABLE is 1");
  ASSERT_EQ(unsetenv("NCCL_P2P_DISABLE"), 0);
}

// Plays a rank's part in the agreements of PeerSum::Create by hand, up to the sum that is tried;
// `tries` does what it likes with all ranks' memory instead.
absl::Status PretendToAddUp(Communicator& host, cudaStream_t stream,
                            const std::function<void(const cuda::PeerMemory&)>& tries) {
  RETURN_IF_ERROR(cuda::Agree(host, absl::OkStatus()));  // it is wanted
  ASSIGN_OR_RETURN(const auto memory, cuda::PeerMemory::Exchange(host, sizeof(PeerSum::Memory),
                                                                 stream, cuda::MachineIdentity()));
  RETURN_IF_ERROR(cuda::Agree(host, absl::OkStatus()));  // all is allocated
  tries(*memory);
  EXPECT_EQ(cuda::Agree(host, absl::OkStatus()).code(), absl::StatusCode::kFailedPrecondition);
  return host.Barrier();
}

// What rank 0 says of a sum that rank 1 spoils.
std::string Complaint(const std::function<void(const cuda::PeerMemory&)>& spoil) {
  std::string complaint;
  RunDevices(2, [&](int rank, Communicator& host) -> absl::Status {
    const Stream stream;
    if (rank == 1) return PretendToAddUp(host, stream.get(), spoil);
    const auto sum = PeerSum::Create(host, stream.get(), {.check_patience = milliseconds(300)});
    EXPECT_EQ(sum.status().code(), absl::StatusCode::kFailedPrecondition);
    complaint = std::string(sum.status().message());
    return host.Barrier();
  });
  return complaint;
}

TEST(PeerSumRefusalTest, MemoryThatDoesNotWorkIsNotUsed) {
  EXPECT_EQ(Complaint([](const cuda::PeerMemory&) {}),
            "rank 0: a sum over peer memory did not end within 300 ms");
  // Rank 1 tells that it has come; its numbers are zeros.
  EXPECT_THAT(Complaint([](const cuda::PeerMemory& memory) {
                auto* peer = static_cast<PeerSum::Memory*>(memory.of(0));
                for (auto& arrived : peer->one_shot.arrived) {
                  const uint32_t once = 1;
                  EXPECT_EQ(cudaMemcpy(&arrived[1], &once, sizeof(once), cudaMemcpyHostToDevice),
                            cudaSuccess);
                }
                EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
              }),
              HasSubstr("a sum over peer memory came out as 1 instead of 3"));
}

// NCCL does it then, and one rank tells.
TEST(PeerSumRefusalTest, TheGroupAddsUpByNcclInstead) {
  std::atomic<int> num_told{0};
  RunDevices(2,
             [&](int, Communicator& host) -> absl::Status {
               const Stream stream;
               NcclOptions options = OwnSums();
               options.notice = [&](const std::string& text) {
                 ++num_told;
                 EXPECT_THAT(text, AllOf(HasSubstr("NCCL alone"), HasSubstr("no peer access")));
               };
               ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                                MakeNcclCommunicator(host, stream.get(), options));
               std::vector<float> ones(100, 1.0f);
               RETURN_IF_ERROR(FromHost(*group, stream.get()).AllReduceSum(ones.data(), 100));
               EXPECT_THAT(ones, ::testing::Each(2.0f));
               return absl::OkStatus();
             },
             {.reach_each_other = false});
  EXPECT_EQ(num_told, 1);
}

}  // namespace
}  // namespace lockstep::testing
