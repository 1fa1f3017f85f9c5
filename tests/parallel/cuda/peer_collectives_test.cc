// Sums and gatherings over peer memory of groups whose ranks are threads with an emulated device
// each. Their kernels alone: peer_kernels_test.cc; between processes: device_ranks_test.cc.
#include "parallel/cuda/peer_collectives.h"

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

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
using cuda::PeerCollectives;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kMost = PeerCollectives::kOneShotFloats;

NcclOptions OwnCollectives() {
  NcclOptions options;
  options.connect_bytes = 4096;
  options.own_collectives = true;
  options.notice = [](const std::string& text) { ADD_FAILURE() << text; };
  return options;
}

using PeerGroupTest = ::testing::TestWithParam<int>;
class LongPeerGroupTest : public PeerGroupTest {};

// NCCL, as emulated, adds in another order: these sums are not its own. Those beyond 256 KiB are.
TEST_P(PeerGroupTest, SumsOfAllSizesAgree) {
  RunDevices(GetParam(), [](int, Communicator& host) -> absl::Status {
    const Stream stream;
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                     MakeNcclCommunicator(host, stream.get(), OwnCollectives()));
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

// Bytes in place and not, whole words and not, several at once, with sums between them; beyond
// 256 KiB by NCCL.
TEST_P(PeerGroupTest, RowsOfAllSizesAreGathered) {
  RunDevices(GetParam(), [](int, Communicator& host) -> absl::Status {
    const Stream stream;
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                     MakeNcclCommunicator(host, stream.get(), OwnCollectives()));
    FromHost from_host(*group, stream.get());
    for (const int64_t count : {int64_t{1}, int64_t{2}, int64_t{1023}, kMost, kMost + 2}) {
      RETURN_IF_ERROR(CheckAllGather(from_host, count, /*in_place=*/false));
      RETURN_IF_ERROR(CheckAllReduce(from_host, 100));
      RETURN_IF_ERROR(CheckAllGather(from_host, count, /*in_place=*/true));
    }
    for (const int64_t count : {int64_t{1000}, kMost}) {
      RETURN_IF_ERROR(CheckAllGatherTogether(from_host, count));
    }
    return group->Health();
  });
}

// Ours, whoever would be faster.
TEST_P(LongPeerGroupTest, LongDeterministicSumsAreThatTreeToo) {
  RunDevices(GetParam(), [](int, Communicator& host) -> absl::Status {
    const Stream stream;
    NcclOptions options = OwnCollectives();
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
TEST(PeerGroupStartTest, ARankWithoutMemoryEndsIt) {
  RunDevices(2, [](int rank, Communicator& host) -> absl::Status {
    const Stream stream;
    NcclOptions options = OwnCollectives();
    if (rank == 1) options.connect_bytes = int64_t{1} << 40;
    options.patience = options.start_patience = seconds(10);
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
TEST_P(LongPeerGroupTest, LongSumsAreTried) {
  RunDevices(GetParam(), [](int, Communicator& host) -> absl::Status {
    const Stream stream;
    NcclOptions options = OwnCollectives();
    options.connect_bytes = 600 << 10;
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                     MakeNcclCommunicator(host, stream.get(), options));
    std::vector<float> ones(2 * kMost, 1.0f);
    RETURN_IF_ERROR(FromHost(*group, stream.get()).AllReduceSum(ones.data(), std::ssize(ones)));
    EXPECT_THAT(ones, ::testing::Each(static_cast<float>(host.size())));
    return group->Health();
  });
}

// Kernels of ours while groups start whose rank 1 shares its device or not; long sums of those that
// do are ours, and rank 0 says why.
int64_t KernelsOfAStart(bool shares_device) {
  std::vector<std::string> notices;
  const int64_t before = cuda_emulation::NumKernelsRun();
  std::atomic<int64_t> num_kernels{0};
  RunDevices(2, [&](int rank, Communicator& host) -> absl::Status {
    const Stream stream;
    NcclOptions options = OwnCollectives();
    options.connect_bytes = 1 << 20;
    options.shares_device = shares_device && rank == 1;
    if (rank == 0) options.notice = [&](const std::string& text) { notices.push_back(text); };
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                     MakeNcclCommunicator(host, stream.get(), options));
    RETURN_IF_ERROR(host.Barrier());
    num_kernels = cuda_emulation::NumKernelsRun() - before;
    RETURN_IF_ERROR(host.Barrier());
    FromHost from_host(*group, stream.get());
    if (shares_device) RETURN_IF_ERROR(CheckAllReduce(from_host, 4 * kMost));
    RETURN_IF_ERROR(CheckAllGather(from_host, kMost, /*in_place=*/true));
    return group->Health();
  });
  const auto told = HasSubstr("not timed, as rank 1 shares its GPU: sums of up to 8 MiB");
  if (shares_device) {
    EXPECT_THAT(notices, ElementsAre(told));
  } else {
    EXPECT_THAT(notices, IsEmpty());
  }
  return num_kernels;
}

TEST(SharedDeviceTest, WhereAnyRankSharesItsDeviceNothingIsTimed) {
  constexpr int kRanks = 2, kChecks = 3, kTimesEach = 2;  // PeerCollectives::Create's
  EXPECT_EQ(KernelsOfAStart(/*shares_device=*/true), kRanks * kChecks * kTimesEach);
  EXPECT_GT(KernelsOfAStart(/*shares_device=*/false), 2 * kRanks * kChecks * kTimesEach);
}

// A recorded sum counts on from wherever its group has come to.
TEST_P(PeerGroupTest, GraphsReplaySums) {
  RunDevices(GetParam(), [](int, Communicator& host) -> absl::Status {
    const Stream stream;
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                     MakeNcclCommunicator(host, stream.get(), OwnCollectives()));
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

// Which may come out either way, too.
TEST_P(LongPeerGroupTest, LongGatheringsAreTried) {
  RunDevices(GetParam(), [](int, Communicator& host) -> absl::Status {
    const Stream stream;
    NcclOptions options = OwnCollectives();
    options.connect_bytes = PeerCollectives::kMaxGatheredBytes * host.size();
    options.deterministic = true;  // of sums alone
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                     MakeNcclCommunicator(host, stream.get(), options));
    FromHost from_host(*group, stream.get());
    for (const int64_t count : {int64_t{1000}, int64_t{8192}, kMost}) {
      RETURN_IF_ERROR(CheckAllGather(from_host, count, /*in_place=*/true));
    }
    return group->Health();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, LongPeerGroupTest, ::testing::Values(2, 3));
INSTANTIATE_TEST_SUITE_P(Ranks, PeerGroupTest, ::testing::Values(2, 3, 4, 8));

// A rank waits in a kernel for one that never comes; the group's end lets it go.
TEST(PeerEndTest, TheEndOfTheGroupEndsTheKernelsWait) {
  RunDevices(2, [](int rank, Communicator& host) -> absl::Status {
    const Stream stream;
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                     MakeNcclCommunicator(host, stream.get(), OwnCollectives()));
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
        const auto sum = PeerCollectives::Create(host, stream.get(), {.machine = machine});
        EXPECT_EQ(sum.status().code(), absl::StatusCode::kFailedPrecondition);
        if (rank == 0) reason = std::string(sum.status().message());
        return host.Barrier();
      },
      pretended);
  return reason;
}

TEST(PeerRefusalTest, AllRanksLearnTheSameReason) {
  EXPECT_EQ(Refusal(2, {}, /*is_other_machine=*/true), "rank 0: rank 1 is on another host");
  EXPECT_EQ(Refusal(2, {.reach_each_other = false}, false),
            "rank 0: GPU 0 has no peer access to GPU 1");
  EXPECT_EQ(Refusal(2, {.has_ipc = false}, false), "rank 0: CUDA IPC: operation not supported");
  EXPECT_EQ(Refusal(9, {}, false), "rank 0: 9 ranks, at most 8 add up by themselves");
  ASSERT_EQ(setenv("NCCL_P2P_DISABLE", "1", 1), 0);
  EXPECT_EQ(Refusal(2, {}, false), "rank 0: NCCL_P2P_DISABLE is 1");
  ASSERT_EQ(unsetenv("NCCL_P2P_DISABLE"), 0);
}

// Plays a rank's part in the agreements of PeerCollectives::Create by hand, up to the sum that is
// tried; `tries` does what it likes with all ranks' memory instead.
absl::Status PretendToAddUp(Communicator& host, cudaStream_t stream,
                            const std::function<void(const cuda::PeerMemory&)>& tries) {
  RETURN_IF_ERROR(cuda::Agree(host, absl::OkStatus()));  // it is wanted
  ASSIGN_OR_RETURN(const auto memory, cuda::PeerMemory::Exchange(
                                          host, sizeof(PeerCollectives::Memory), stream, BootId()));
  RETURN_IF_ERROR(cuda::Agree(host, absl::OkStatus()));  // all is allocated
  tries(*memory);
  EXPECT_EQ(cuda::Agree(host, absl::OkStatus()).code(), absl::StatusCode::kFailedPrecondition);
  RETURN_IF_ERROR(memory->Leave(host, absl::OkStatus()));
  return host.Barrier();
}

// What rank 0 says of a sum that rank 1 spoils.
std::string Complaint(const std::function<void(const cuda::PeerMemory&)>& spoil,
                      milliseconds patience = seconds(30)) {
  std::string complaint;
  RunDevices(2, [&](int rank, Communicator& host) -> absl::Status {
    const Stream stream;
    if (rank == 1) return PretendToAddUp(host, stream.get(), spoil);
    const auto sum = PeerCollectives::Create(host, stream.get(), {.check_patience = patience});
    EXPECT_EQ(sum.status().code(), absl::StatusCode::kFailedPrecondition);
    complaint = std::string(sum.status().message());
    return host.Barrier();
  });
  return complaint;
}

TEST(PeerRefusalTest, MemoryThatDoesNotWorkIsNotUsed) {
  EXPECT_EQ(Complaint([](const cuda::PeerMemory&) {}, milliseconds(300)),
            "rank 0: a sum over peer memory did not end within 300 ms");
  // Rank 1 tells that it has come; its numbers are zeros.
  EXPECT_THAT(Complaint([](const cuda::PeerMemory& memory) {
                auto* peer = static_cast<PeerCollectives::Memory*>(memory.of(0));
                for (auto& arrived : peer->one_shot.arrived) {
                  const uint32_t once = 1;
                  EXPECT_EQ(cudaMemcpy(&arrived[1], &once, sizeof(once), cudaMemcpyHostToDevice),
                            cudaSuccess);
                }
                EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
              }),
              HasSubstr("a sum over peer memory came out as 1 instead of 3"));
}

// Rank 1 adds up as it should, and has no row to gather.
void AddUpAndGatherZeros(const cuda::PeerMemory& memory) {
  const Stream stream;
  uint32_t* aborted = nullptr;
  EXPECT_EQ(cudaHostAlloc(&aborted, sizeof(uint32_t), cudaHostAllocMapped), cudaSuccess);
  *aborted = 0;
  cuda::OneShotRanks one_shot = {{}, aborted, /*rank=*/1, /*size=*/2};
  cuda::TwoShotRanks two_shot = {{}, aborted, /*rank=*/1, /*size=*/2};
  for (int rank = 0; rank < 2; ++rank) {
    auto* const of_rank = static_cast<PeerCollectives::Memory*>(memory.of(rank));
    one_shot.memory[rank] = &of_rank->one_shot;
    two_shot.memory[rank] = &of_rank->two_shot;
  }
  std::vector<float> terms(kMost);
  for (size_t i = 0; i < terms.size(); ++i) terms[i] = 2.0f * static_cast<float>(i % 1021);
  for (const int64_t count : {kMost, kMost, int64_t{4001}, int64_t{4001}}) {
    const OnDevice data(terms.data(), count * 4, stream.get());
    EXPECT_EQ(count == kMost ? LaunchOneShotSum(one_shot, data.as<float>(), count, stream.get())
                             : LaunchTwoShotSum(two_shot, data.as<float>(), count, stream.get()),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  }
  constexpr int64_t kRowBytes = 4100 * 4;
  const std::vector<float> zeros(2 * 4100);
  const OnDevice rows(zeros.data(), 2 * kRowBytes, stream.get());
  auto* const all = rows.as<std::byte>();
  EXPECT_EQ(LaunchOneShotGather(one_shot, {all + kRowBytes, all, kRowBytes}, stream.get()),
            cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(aborted), cudaSuccess);
}

TEST(PeerRefusalTest, GatheringsThatComeOutWrongAreNotUsedEither) {
  EXPECT_EQ(Complaint(&AddUpAndGatherZeros),
            "rank 0: a gathering over peer memory came out as 0 instead of 2");
}

// NCCL does it then, and one rank tells.
TEST(PeerRefusalTest, TheGroupGoesThroughNcclInstead) {
  std::atomic<int> num_told{0};
  RunDevices(2,
             [&](int, Communicator& host) -> absl::Status {
               const Stream stream;
               NcclOptions options = OwnCollectives();
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
