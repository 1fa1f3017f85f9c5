// The one-shot all-reduce: its kernel with hand-made ranks, and groups whose ranks are threads with
// an emulated device each. Between processes: device_ranks_test.cc.
#include "parallel/cuda/one_shot_sum.h"

#include <atomic>
#include <cstdlib>
#include <limits>

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
using cuda::OneShotMemory;
using cuda::OneShotRanks;
using cuda::OneShotSum;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMost = OneShotSum::kMaxFloats;

// All ranks on one device, each with a stream and memory of its own.
class OneShotKernelTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    cuda_emulation::SetDevice({});
    ASSERT_EQ(cudaHostAlloc(&aborted_, sizeof(uint32_t), cudaHostAllocMapped), cudaSuccess);
    *aborted_ = 0;
    ranks_.aborted = aborted_;
    ranks_.size = GetParam();
    for (int rank = 0; rank < ranks_.size; ++rank) {
      memories_.push_back(std::make_unique<OnDevice>(nullptr, sizeof(OneShotMemory), stream(rank)));
      ranks_.memory[rank] = memories_.back()->as<OneShotMemory>();
      EXPECT_EQ(cudaMemset(ranks_.memory[rank], 0, sizeof(OneShotMemory)), cudaSuccess);
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
    OneShotRanks mine = ranks_;
    mine.rank = rank;
    EXPECT_EQ(cuda::LaunchOneShotSum(mine, data, count, stream(rank)), cudaSuccess);
  }
  void ExpectSums(const OnDevice& data, int64_t count, int64_t offset, int rank) {
    std::vector<float> sums(static_cast<size_t>(offset + count + 1));
    data.ReadTo(sums.data());
    EXPECT_EQ(sums.back(), kGuard);
    for (int64_t i = 0; i < count; ++i) {
      const float sum = sums[static_cast<size_t>(offset + i)];
      const float expected = TreeSum(0, ranks_.size, i);
      ASSERT_TRUE(std::isnan(expected) ? std::isnan(sum) : SameBits(sum, expected))
          << "rank " << rank << ", element " << i << " of " << count;
    }
  }
  void SumOnAll(int64_t count, int64_t offset = 0) {
    std::vector<std::unique_ptr<OnDevice>> data;
    for (int rank = 0; rank < ranks_.size; ++rank) {
      data.push_back(MakeData(rank, count, offset));
      Launch(rank, data.back()->as<float>() + offset, count);
    }
    for (int rank = 0; rank < ranks_.size; ++rank) {
      ExpectSums(*data[static_cast<size_t>(rank)], count, offset, rank);
    }
  }

  static constexpr float kGuard = 77.0f;
  uint32_t* aborted_ = nullptr;
  OneShotRanks ranks_ = {};
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::unique_ptr<OnDevice>> memories_;
};

TEST_P(OneShotKernelTest, SumsAreTheTreeOfNeighboursToTheBit) {
  for (const int64_t count :
       {int64_t{1}, int64_t{3}, int64_t{4}, int64_t{5}, int64_t{63}, int64_t{1023}, int64_t{1024},
        int64_t{1025}, int64_t{4099}, int64_t{16383}, int64_t{40001}}) {
    SumOnAll(count);
  }
}

TEST_P(OneShotKernelTest, AnyAlignmentOfTheData) {
  for (const int64_t offset : {1, 2, 3}) SumOnAll(2053, offset);
}

TEST_P(OneShotKernelTest, NoThreadNeedsAnotherOrder) {
  for (const uint64_t order : {1, 2, 3}) {
    cuda_emulation::SetThreadOrder(order);
    SumOnAll(2053);
  }
}

// At 16,000 sums a second the count wraps around in three days.
TEST_P(OneShotKernelTest, TheCountOfMeetingsWrapsAround) {
  OneShotMemory words = {};
  for (uint32_t& count : words.num_meetings) count = std::numeric_limits<uint32_t>::max() - 1;
  for (auto& block : words.arrived) {
    for (uint32_t& count : block) count = std::numeric_limits<uint32_t>::max() - 1;
  }
  for (int rank = 0; rank < ranks_.size; ++rank) {
    EXPECT_EQ(cudaMemcpy(ranks_.memory[rank], &words, offsetof(OneShotMemory, slots),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  for (int round = 0; round < 4; ++round) SumOnAll(2053);
}

TEST_P(OneShotKernelTest, AnAbortedWaitEnds) {
  const std::unique_ptr<OnDevice> data = MakeData(0, 2053, 0);
  Launch(0, data->as<float>(), 2053);
  EXPECT_EQ(cudaStreamQuery(stream(0)), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(stream(0)), cudaErrorNotReady);
  *aborted_ = 1;
  EXPECT_EQ(cudaStreamSynchronize(stream(0)), cudaSuccess);
}

INSTANTIATE_TEST_SUITE_P(Ranks, OneShotKernelTest, ::testing::Range(2, 9));

TEST(OneShotLaunchTest, SizesBeyondTheSlotsAreRefused) {
  OneShotRanks ranks = {};
  ranks.size = 2;
  EXPECT_EQ(cuda::LaunchOneShotSum(ranks, nullptr, 0, nullptr), cudaSuccess);
  EXPECT_EQ(cuda::LaunchOneShotSum(ranks, nullptr, kMost + 1, nullptr), cudaErrorInvalidValue);
  ranks.size = 9;
  EXPECT_EQ(cuda::LaunchOneShotSum(ranks, nullptr, 1, nullptr), cudaErrorInvalidValue);
}

NcclOptions OneShotOptions() {
  NcclOptions options;
  options.connect_bytes = 4096;
  options.one_shot = true;
  options.notice = [](const std::string& text) { ADD_FAILURE() << text; };
  return options;
}

using OneShotGroupTest = ::testing::TestWithParam<int>;

// NCCL, as emulated, adds in another order: these sums are not its own. Those beyond 256 KiB are.
TEST_P(OneShotGroupTest, SumsOfAllSizesAgree) {
  RunDevices(GetParam(), [](int, Communicator& host) -> absl::Status {
    const Stream stream;
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                     MakeNcclCommunicator(host, stream.get(), OneShotOptions()));
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

// A recorded sum counts on from wherever its group has come to.
TEST_P(OneShotGroupTest, GraphsReplaySums) {
  RunDevices(GetParam(), [](int, Communicator& host) -> absl::Status {
    const Stream stream;
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                     MakeNcclCommunicator(host, stream.get(), OneShotOptions()));
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

INSTANTIATE_TEST_SUITE_P(Ranks, OneShotGroupTest, ::testing::Values(2, 3, 4, 8));

// A rank waits in a kernel for one that never comes; the group's end lets it go.
TEST(OneShotEndTest, TheEndOfTheGroupEndsTheKernelsWait) {
  RunDevices(2, [](int rank, Communicator& host) -> absl::Status {
    const Stream stream;
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                     MakeNcclCommunicator(host, stream.get(), OneShotOptions()));
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
        const auto sum = OneShotSum::Create(host, stream.get(), {.machine = machine});
        EXPECT_EQ(sum.status().code(), absl::StatusCode::kFailedPrecondition);
        if (rank == 0) reason = std::string(sum.status().message());
        return host.Barrier();
      },
      pretended);
  return reason;
}

TEST(OneShotRefusalTest, AllRanksLearnTheSameReason) {
  EXPECT_EQ(Refusal(2, {}, /*is_other_machine=*/true), "rank 0: rank 1 is on another host");
  EXPECT_EQ(Refusal(2, {.reach_each_other = false}, false),
            "rank 0: GPU 0 has no peer access to GPU 1");
  EXPECT_EQ(Refusal(2, {.has_ipc = false}, false), "rank 0: CUDA IPC: operation not supported");
  EXPECT_EQ(Refusal(9, {}, false), "rank 0: 9 ranks, at most 8 add up by themselves");
  ASSERT_EQ(setenv("NCCL_P2P_DISABLE", "1", 1), 0);
  EXPECT_EQ(Refusal(2, {}, false), "rank 0: NCCL_P2P_DISABLE is 1");
  ASSERT_EQ(unsetenv("NCCL_P2P_DISABLE"), 0);
}

// Plays a rank's part in the agreements of OneShotSum::Create by hand, up to the sum that is tried;
// `tries` does what it likes with all ranks' memory instead.
absl::Status PretendToAddUp(Communicator& host, cudaStream_t stream,
                            const std::function<void(const cuda::PeerMemory&)>& tries) {
  RETURN_IF_ERROR(cuda::Agree(host, absl::OkStatus()));  // it is wanted
  ASSIGN_OR_RETURN(const auto memory, cuda::PeerMemory::Exchange(host, sizeof(OneShotMemory),
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
    const auto sum = OneShotSum::Create(host, stream.get(), {.check_patience = milliseconds(300)});
    EXPECT_EQ(sum.status().code(), absl::StatusCode::kFailedPrecondition);
    complaint = std::string(sum.status().message());
    return host.Barrier();
  });
  return complaint;
}

TEST(OneShotRefusalTest, MemoryThatDoesNotWorkIsNotUsed) {
  EXPECT_EQ(Complaint([](const cuda::PeerMemory&) {}),
            "rank 0: a sum over peer memory did not end within 300 ms");
  // Rank 1 tells that it has come; its numbers are zeros.
  EXPECT_THAT(Complaint([](const cuda::PeerMemory& memory) {
                auto* peer = static_cast<OneShotMemory*>(memory.of(0));
                for (auto& arrived : peer->arrived) {
                  const uint32_t once = 1;
                  EXPECT_EQ(cudaMemcpy(&arrived[1], &once, sizeof(once), cudaMemcpyHostToDevice),
                            cudaSuccess);
                }
                EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
              }),
              HasSubstr("a sum over peer memory came out as 1 instead of 3"));
}

// NCCL does it then, and one rank tells.
TEST(OneShotRefusalTest, TheGroupAddsUpByNcclInstead) {
  std::atomic<int> num_told{0};
  RunDevices(2,
             [&](int, Communicator& host) -> absl::Status {
               const Stream stream;
               NcclOptions options = OneShotOptions();
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
