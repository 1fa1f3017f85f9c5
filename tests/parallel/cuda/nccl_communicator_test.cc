// The communicator over NCCL, its ranks being threads with an emulated device each.
#include "parallel/cuda/nccl_communicator.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <atomic>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_status.h"
#include "parallel/cuda/nccl_group.h"
#include "tests/parallel/collective_checks.h"
#include "tests/parallel/cuda/on_device.h"
#include "tests/parallel/cuda/run_devices.h"

namespace lockstep::testing {
namespace {

using cuda::CudaStatus;
using cuda::MakeNcclCommunicator;
using cuda::NcclOptions;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

NcclOptions SmallOptions() {
  NcclOptions options;
  options.workspace_bytes = 10000;  // sums of 100,000 numbers are cut into chunks
  options.connect_bytes = 4096;
  return options;
}

class NcclCommunicatorTest : public ::testing::TestWithParam<int> {
 protected:
  // body gets the group over NCCL, as given and as seen from the host.
  void OnEveryRank(const NcclOptions& options,
                   const std::function<absl::Status(Communicator& group, Communicator& from_host,
                                                    cudaStream_t stream)>& body) {
    RunDevices(GetParam(), [&](int, Communicator& host) -> absl::Status {
      const Stream stream;
      ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                       MakeNcclCommunicator(host, stream.get(), options));
      FromHost from_host(*group, stream.get());
      const absl::Status status = body(*group, from_host, stream.get());
      if (!status.ok()) group->Abort();
      return status;
    });
  }
};

TEST_P(NcclCommunicatorTest, DeterministicSumsAreTheTreeOfNeighboursToTheBit) {
  NcclOptions options = SmallOptions();
  options.deterministic = true;
  OnEveryRank(options, [](Communicator&, Communicator& group, cudaStream_t) -> absl::Status {
    for (const int64_t count : kCounts) {
      RETURN_IF_ERROR(CheckAllReduce(group, count));
      RETURN_IF_ERROR(CheckReduceScatter(group, count));
    }
    return absl::OkStatus();
  });
}

TEST_P(NcclCommunicatorTest, SumsAddEveryRanksNumbers) {
  OnEveryRank(SmallOptions(), [](Communicator&, Communicator& group, cudaStream_t) -> absl::Status {
    for (const int64_t count : kCounts) {
      std::vector<float> data(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i)
        data[i] = static_cast<float>((group.rank() + 1) * (i % 9));
      RETURN_IF_ERROR(group.AllReduceSum(data.data(), count));
      const int all = group.size() * (group.size() + 1) / 2;
      for (int64_t i = 0; i < count; ++i) {
        if (data[i] != static_cast<float>(all * (i % 9))) return Mismatch(group, "all-reduce", i);
      }
      const int64_t share = count / group.size();
      for (int64_t i = 0; i < count; ++i)
        data[i] = static_cast<float>((group.rank() + 1) * (i % 9));
      RETURN_IF_ERROR(group.ReduceScatterSum(data.data(), share));
      for (int64_t i = group.rank() * share; i < (group.rank() + 1) * share; ++i) {
        if (data[i] != static_cast<float>(all * (i % 9))) {
          return Mismatch(group, "reduce-scatter", i);
        }
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(NcclCommunicatorTest, AllGatherConcatenates) {
  OnEveryRank(SmallOptions(), [](Communicator&, Communicator& group, cudaStream_t) -> absl::Status {
    for (const int64_t count : kCounts) {
      for (const bool in_place : {false, true}) {
        RETURN_IF_ERROR(CheckAllGather(group, count, in_place));
      }
      RETURN_IF_ERROR(CheckAllGatherTogether(group, count));
    }
    return absl::OkStatus();
  });
}

TEST_P(NcclCommunicatorTest, AllToAllGivesEachRankItsPartOfAll) {
  NcclOptions options = SmallOptions();
  options.connects_pairs = true;
  OnEveryRank(options, [](Communicator&, Communicator& group, cudaStream_t) -> absl::Status {
    for (const int64_t count : kCounts) {
      RETURN_IF_ERROR(CheckAllToAll(group, count, count));
      RETURN_IF_ERROR(CheckAllToAll(group, count, count + 5));
    }
    return absl::OkStatus();
  });
}

TEST_P(NcclCommunicatorTest, MessagesArriveInOrder) {
  OnEveryRank(SmallOptions(), [](Communicator&, Communicator& group, cudaStream_t) -> absl::Status {
    for (const int64_t count : kCounts) RETURN_IF_ERROR(CheckMessagesInOrder(group, count));
    return absl::OkStatus();
  });
}

TEST_P(NcclCommunicatorTest, NobodyLeavesABarrierBeforeAllHaveCome) {
  std::atomic<int> num_arrived{0};
  OnEveryRank(SmallOptions(),
              [&](Communicator& group, Communicator&, cudaStream_t) -> absl::Status {
                for (int round = 1; round <= 5; ++round) {
                  ++num_arrived;
                  RETURN_IF_ERROR(group.Barrier());
                  if (num_arrived < round * group.size()) return Mismatch(group, "barrier", round);
                  RETURN_IF_ERROR(group.Barrier());
                }
                return absl::OkStatus();
              });
}

// All of them: who has seen nothing wrong is not left behind.
TEST_P(NcclCommunicatorTest, RanksRefuseLinksThatLoseNumbers) {
  NcclOptions all_to_all = SmallOptions();
  all_to_all.connects_pairs = true;
  const std::string last = absl::StrCat("rank ", GetParam() - 1, ": NCCL's ");
  for (const auto& [lost, told, options] :
       std::vector<std::tuple<const char*, const char*, NcclOptions>>{
           {"all-reduce", "all-reduce of 4 bytes: number 0 is ", SmallOptions()},
           {"all-reduce of 4096 bytes", "all-reduce of 4096 bytes: number 0 is ", SmallOptions()},
           {"reduce-scatter", "reduce-scatter of 4 bytes", SmallOptions()},
           {"all-gather", "all-gather of 4 bytes: number 0 is 0 instead of 1", SmallOptions()},
           {"receive", "message of 4 bytes: number 0 is 0 instead of ", SmallOptions()},
           {"receive", "exchange of 4 bytes: number 0 is 0 instead of ", all_to_all}}) {
    RunDevices(
        GetParam(),
        [&, lost = lost, told = told, options = options](int, Communicator& host) -> absl::Status {
          const Stream stream;
          const absl::Status status = MakeNcclCommunicator(host, stream.get(), options).status();
          EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << lost;
          EXPECT_THAT(std::string(status.message()),
                      AllOf(HasSubstr(last), HasSubstr(told), HasSubstr("IOMMU or PCIe ACS"),
                            HasSubstr("NCCL_P2P_DISABLE=1")));
          return absl::OkStatus();
        },
        {.nccl_loses = lost});
  }
}

// Launches wait for their turn among the stream's work, inside graphs, too.
TEST_P(NcclCommunicatorTest, GraphsReplayCollectives) {
  for (const bool deterministic : {false, true}) {
    NcclOptions options = SmallOptions();
    options.deterministic = deterministic;
    OnEveryRank(options, [](Communicator& group, Communicator&, cudaStream_t stream) {
      const std::vector<float> ones(8, 1.0f);
      const OnDevice data(ones.data(), 32, stream);
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
      const absl::Status status = group.AllReduceSum(data.as<float>(), 8);
      EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
      EXPECT_EQ(cudaGraphInstantiate(&exec, graph), cudaSuccess);
      EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
      for (int i = 0; i < 2; ++i) EXPECT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
      std::vector<float> sums(8);
      data.ReadTo(sums.data());
      EXPECT_THAT(sums, ::testing::Each(static_cast<float>(group.size() * group.size())));
      EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
      return status;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclCommunicatorTest, ::testing::Values(2, 3, 4, 7, 8));

TEST(NcclEndTest, GraphsAreForgottenBeforeTheGroupIsLeft) {
  RunDevices(2, [&](int, Communicator& host) -> absl::Status {
    const Stream stream;
    cudaGraphExec_t exec = nullptr;
    NcclOptions options = SmallOptions();
    options.forget_graphs = [&] { EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess); };
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> group,
                     MakeNcclCommunicator(host, stream.get(), options));
    const OnDevice data(nullptr, 32, stream.get());
    cudaGraph_t graph = nullptr;
    RETURN_IF_ERROR(
        CudaStatus(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "1"));
    RETURN_IF_ERROR(group->AllReduceSum(data.as<float>(), 8));
    RETURN_IF_ERROR(CudaStatus(cudaStreamEndCapture(stream.get(), &graph), "2"));
    RETURN_IF_ERROR(CudaStatus(cudaGraphInstantiate(&exec, graph), "3"));
    RETURN_IF_ERROR(CudaStatus(cudaGraphDestroy(graph), "4"));
    group.reset();
    return absl::OkStatus();
  });
}

// The stream's kernel ends, and the next call tells by whom and in what.
TEST(NcclEndTest, ARankThatGoesEndsItsPeersWaits) {
  RunDevices(2, [&](int rank, Communicator& host) -> absl::Status {
    const Stream stream;
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                     MakeNcclCommunicator(host, stream.get(), SmallOptions()));
    RETURN_IF_ERROR(host.Barrier());
    if (rank == 0) {
      group->Abort();
      EXPECT_EQ(group->Barrier().code(), absl::StatusCode::kUnavailable);
      return absl::OkStatus();
    }
    const OnDevice data(nullptr, 32, stream.get());
    if (group->AllReduceSum(data.as<float>(), 8).ok()) {
      EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
    }
    const absl::Status status = group->AllReduceSum(data.as<float>(), 8);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("rank 1 of 2"), HasSubstr("remote process")));
    return absl::OkStatus();
  });
}

// A graph is launched past the communicator: only its health tells that the numbers are none.
TEST(NcclEndTest, HealthTellsOfWhatAGraphCouldNotDo) {
  RunDevices(2, [&](int rank, Communicator& host) -> absl::Status {
    const Stream stream;
    cudaGraphExec_t exec = nullptr;
    NcclOptions options = SmallOptions();
    options.forget_graphs = [&] { EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess); };
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> group,
                     MakeNcclCommunicator(host, stream.get(), options));
    const OnDevice data(nullptr, 32, stream.get());
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
    RETURN_IF_ERROR(group->AllReduceSum(data.as<float>(), 8));
    EXPECT_EQ(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&exec, graph), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    RETURN_IF_ERROR(host.Barrier());
    // Rank 1 comes when rank 0 is through, so that neither has a peer.
    if (rank == 0) group->Abort();
    if (rank == 1) RETURN_IF_ERROR(host.Barrier());
    EXPECT_EQ(cudaGraphLaunch(exec, stream.get()), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
    EXPECT_EQ(group->Health().code(), absl::StatusCode::kUnavailable);
    if (rank == 0) RETURN_IF_ERROR(host.Barrier());
    group.reset();
    return absl::OkStatus();
  });
}

TEST(NcclEndTest, GroupsOfADeviceEndTogether) {
  RunDevices(2, [&](int rank, Communicator& host) -> absl::Status {
    const Stream stream;
    NcclOptions options = SmallOptions();
    options.siblings = std::make_shared<cuda::NcclSiblings>();
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> one,
                     MakeNcclCommunicator(host, stream.get(), options));
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> other,
                     MakeNcclCommunicator(host, stream.get(), options));
    RETURN_IF_ERROR(host.Barrier());
    if (rank == 0) one->Abort();
    while (one->Health().ok()) {
    }
    EXPECT_EQ(other->Health(), one->Health());
    RETURN_IF_ERROR(host.Barrier());
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> anew,
                     MakeNcclCommunicator(host, stream.get(), options));
    RETURN_IF_ERROR(anew->Barrier());
    return anew->Health();
  });
}

// NCCL aborts a communicator only when all that was queued before its work has ended.
TEST(NcclEndTest, GroupsWhoseWorkWaitsForEachOthersEndAllTheSame) {
  RunDevices(2, [&](int rank, Communicator& host) -> absl::Status {
    const Stream stream;
    NcclOptions options = SmallOptions();
    options.siblings = std::make_shared<cuda::NcclSiblings>();
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> one,
                     MakeNcclCommunicator(host, stream.get(), options));
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> other,
                     MakeNcclCommunicator(host, stream.get(), options));
    RETURN_IF_ERROR(host.Barrier());
    if (rank == 0) {  // rank 1 does not come
      const OnDevice data(nullptr, 32, stream.get());
      RETURN_IF_ERROR(one->AllReduceSum(data.as<float>(), 8));
      RETURN_IF_ERROR(other->AllReduceSum(data.as<float>(), 8));
      RETURN_IF_ERROR(one->AllReduceSum(data.as<float>(), 8));
      one->Abort();
      EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
      EXPECT_EQ(other->Health().code(), absl::StatusCode::kUnavailable);
    }
    return host.Barrier();
  });
}

TEST(NcclEndTest, AnyThreadMayAbort) {
  RunDevices(2, [&](int rank, Communicator& host) -> absl::Status {
    const Stream stream;
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                     MakeNcclCommunicator(host, stream.get(), SmallOptions()));
    absl::Status status;
    if (rank == 0) {
      std::thread watchdog([&] {
        std::this_thread::sleep_for(milliseconds(50));
        group->Abort();
      });
      status = group->Barrier();  // rank 1 never comes
      watchdog.join();
      EXPECT_THAT(status.message(),
                  AllOf(HasSubstr("rank 0 of 2: all-reduce"), HasSubstr("aborted")));
    }
    EXPECT_TRUE(host.Barrier().ok());
    return absl::OkStatus();
  });
}

TEST(NcclEndTest, ABarrierThatNotAllReachEnds) {
  RunDevices(2, [&](int rank, Communicator& host) -> absl::Status {
    const Stream stream;
    NcclOptions options = SmallOptions();
    options.patience = milliseconds(3000);
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                     MakeNcclCommunicator(host, stream.get(), options));
    if (rank == 0) {
      EXPECT_THAT(group->Barrier().message(), HasSubstr("not reached by all within 3000 ms"));
    }
    return host.Barrier();
  });
}

TEST(NcclEndTest, ARankThatDoesNotComeIsNotWaitedForWithoutEnd) {
  RunDevices(2, [&](int rank, Communicator& host) -> absl::Status {
    if (rank == 1) {
      std::vector<std::byte> mine(sizeof(int32_t) + sizeof(ncclUniqueId));
      std::vector<std::byte> all(2 * mine.size());
      return host.AllGather(mine.data(), static_cast<int64_t>(mine.size()), all.data());
    }
    const Stream stream;
    NcclOptions options = SmallOptions();
    options.start_patience = milliseconds(100);
    const auto group = MakeNcclCommunicator(host, stream.get(), options);
    EXPECT_EQ(group.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(group.status().message(), HasSubstr("rank 0 of 2: joining the group"));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace lockstep::testing
