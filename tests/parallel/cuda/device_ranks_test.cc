// Groups whose ranks are processes with a device each, or one for all: on the emulation of CUDA,
// and on real GPUs (tests/gpu/run.sh).
//
//   device_ranks_test --latencies RANKS [REPEATS]
//
// prints tables: sums and gatherings of our own beside NCCL's, and long sums beside what divided
// steps have instead.
#include <cuda_runtime.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_status.h"
#include "parallel/cuda/nccl_communicator.h"
#include "parallel/cuda/peer_collectives.h"
#include "parallel/nccl_environment.h"
#include "tests/parallel/collective_checks.h"
#include "tests/parallel/cuda/cuda_ipc.h"
#include "tests/parallel/cuda/on_device.h"
#include "tests/parallel/local_ranks.h"

namespace lockstep::testing {
namespace {

using cuda::CudaStatus;
using cuda::MakeNcclCommunicator;
using cuda::NcclOptions;
using cuda::PeerCollectives;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

int NumDevices() {
  int num_devices = 0;
  EXPECT_EQ(cudaGetDeviceCount(&num_devices), cudaSuccess);
  return num_devices;
}

// The device's turn comes by rank, and NCCL's settings are the server's.
absl::Status UseDevice(const LocalRank& rank) {
  LeaveRecordingsUnregistered();
  const int num_devices = NumDevices();
  if (num_devices < rank.size) LetRanksShareAGpu();
  return CudaStatus(cudaSetDevice(rank.rank % num_devices), "choosing a GPU");
}

// in_tree: sums are those of the tree, by our kernel or, without IPC, of what NCCL gathers.
NcclOptions Options(bool in_tree) {
  NcclOptions options;
  options.connect_bytes = 256 << 10;
  options.own_collectives = in_tree && HasCudaIpc();
  options.deterministic = in_tree && !HasCudaIpc();
  options.notice = &TakeNotice;
  options.start_patience = RanksTimeout() / 2;
  return options;
}

absl::StatusOr<std::unique_ptr<Communicator>> MakeGroup(const LocalRank& rank,
                                                        const cuda::KernelStream& stream,
                                                        NcclOptions options) {
  options.shares_device = NumDevices() < rank.size;
  const RankGroups host = rank.Groups(*ProcessGrid::Create(rank.size, 1));
  return MakeNcclCommunicator(*host.tp, stream, options);
}

class Recording {
 public:
  Recording(cudaStream_t stream, const std::function<absl::Status()>& body) : stream_(stream) {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_TRUE(body().ok());
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&graph_, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  ~Recording() { EXPECT_EQ(cudaGraphExecDestroy(graph_), cudaSuccess); }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  void Replay() const { EXPECT_EQ(cudaGraphLaunch(graph_, stream_), cudaSuccess); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t graph_ = nullptr;
};

// ---- what ranks do ----

// NCCL's order of additions is another, so these sums are ours. Between them, gatherings.
absl::Status Sums(const LocalRank& rank) {
  RETURN_IF_ERROR(UseDevice(rank));
  const Stream stream;
  ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                   MakeGroup(rank, stream.get(), Options(true)));
  FromHost from_host(*group, stream.get());
  for (const int64_t count :
       {int64_t{1}, int64_t{3}, int64_t{1025}, int64_t{20001}, PeerCollectives::kOneShotFloats}) {
    RETURN_IF_ERROR(CheckAllReduce(from_host, count));
    RETURN_IF_ERROR(CheckReduceScatter(from_host, count / rank.size));
    RETURN_IF_ERROR(CheckAllGather(from_host, count, /*in_place=*/count % 2 == 0));
  }
  return group->Health();
}

// Too long for one shot: in two, or of parts that NCCL exchanges, in pieces.
absl::Status LongSums(const LocalRank& rank) {
  RETURN_IF_ERROR(UseDevice(rank));
  const Stream stream;
  NcclOptions options = Options(true);
  options.deterministic = true;
  options.workspace_bytes = 100000;
  for (const bool own_collectives : {true, false}) {
    options.own_collectives = own_collectives && HasCudaIpc();
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                     MakeGroup(rank, stream.get(), options));
    FromHost from_host(*group, stream.get());
    RETURN_IF_ERROR(CheckAllReduce(from_host, PeerCollectives::kOneShotFloats + 5));
    RETURN_IF_ERROR(CheckReduceScatter(from_host, PeerCollectives::kOneShotFloats / rank.size + 1));
    RETURN_IF_ERROR(CheckAllGatherTogether(from_host, 10000));
    RETURN_IF_ERROR(group->Health());
  }
  return absl::OkStatus();
}

absl::Status RecordedSums(const LocalRank& rank) {
  RETURN_IF_ERROR(UseDevice(rank));
  const Stream stream;
  ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                   MakeGroup(rank, stream.get(), Options(true)));
  const std::vector<float> ones(3000, 1.0f);
  const OnDevice data(ones.data(), 12000, stream.get());
  const Recording recording(stream.get(), [&]() -> absl::Status {
    RETURN_IF_ERROR(group->AllReduceSum(data.as<float>(), 3000));
    return group->AllReduceSum(data.as<float>(), 1500);
  });
  float sum = 1;
  for (int round = 0; round < 5; ++round) {
    recording.Replay();
    sum *= static_cast<float>(rank.size);
  }
  std::vector<float> sums(3000);
  data.ReadTo(sums.data());
  EXPECT_EQ(sums[2999], sum);
  EXPECT_EQ(sums[0], sum * sum);
  return group->Health();
}

// Rank 1 is killed while the others' kernels wait for it. They end, as whoever watches the ranks
// (the controller, in a job; a socket here) has the group aborted.
absl::Status LosesAPeer(const LocalRank& rank) {
  RETURN_IF_ERROR(UseDevice(rank));
  const Stream stream;
  const RankGroups host = rank.Groups(*ProcessGrid::Create(rank.size, 1));
  ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                   MakeNcclCommunicator(*host.tp, stream.get(), Options(true)));
  RETURN_IF_ERROR(host.tp->Barrier());
  if (rank.rank == 1) raise(SIGKILL);
  std::thread watchdog([&] {
    char byte = 0;
    EXPECT_EQ(host.tp->Recv(1, &byte, 1).code(), absl::StatusCode::kUnavailable);
    group->Abort();
  });
  const OnDevice data(nullptr, 4000, stream.get());
  const absl::Status launched = group->AllReduceSum(data.as<float>(), 1000);
  EXPECT_TRUE(launched.ok() || absl::IsUnavailable(launched)) << launched;
  EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  watchdog.join();
  EXPECT_EQ(group->Health().code(), absl::StatusCode::kUnavailable);
  return absl::OkStatus();
}

constexpr int kCallsOfARecording = 20;

// Microseconds of a call on `bytes` of f32, as part of a recorded step.
using Collective = std::function<absl::Status(Communicator& group, float* data)>;
absl::StatusOr<double> Time(Communicator& group, int64_t bytes, int repeats, cudaStream_t stream,
                            const Collective& call) {
  const OnDevice data(std::vector<float>(static_cast<size_t>(bytes / 4)).data(), bytes, stream);
  const Recording recording(stream, [&]() -> absl::Status {
    for (int i = 0; i < kCallsOfARecording; ++i) RETURN_IF_ERROR(call(group, data.as<float>()));
    return absl::OkStatus();
  });
  recording.Replay();
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  EXPECT_EQ(cudaEventCreate(&begin), cudaSuccess);
  EXPECT_EQ(cudaEventCreate(&end), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(begin, stream), cudaSuccess);
  for (int i = 0; i < repeats; ++i) recording.Replay();
  EXPECT_EQ(cudaEventRecord(end, stream), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(end), cudaSuccess);
  float ms = 0;
  EXPECT_EQ(cudaEventElapsedTime(&ms, begin, end), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(begin), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(end), cudaSuccess);
  RETURN_IF_ERROR(group.Health());
  return 1e3 * static_cast<double>(ms) / (repeats * kCallsOfARecording);
}

absl::StatusOr<double> TimeAllReduce(Communicator& group, int64_t bytes, int repeats,
                                     cudaStream_t stream) {
  return Time(group, bytes, repeats, stream,
              [&](Communicator& all, float* data) { return all.AllReduceSum(data, bytes / 4); });
}

// bytes: of all ranks.
absl::StatusOr<double> TimeAllGather(Communicator& group, int64_t bytes, int repeats,
                                     cudaStream_t stream) {
  const int64_t row = bytes / group.size();
  return Time(group, bytes, repeats, stream, [&](Communicator& all, float* data) {
    auto* const rows = reinterpret_cast<std::byte*>(data);
    return all.AllGather(rows + all.rank() * row, row, rows);
  });
}

// Of a divided step: each rank its share of the sum, and what it makes of that for everybody, in
// bytes_to_a_number.
absl::StatusOr<double> TimeDivided(Communicator& group, int64_t bytes, int bytes_to_a_number,
                                   int repeats, cudaStream_t stream) {
  const int64_t share = bytes / 4 / group.size();
  return Time(group, bytes, repeats, stream, [&](Communicator& all, float* data) -> absl::Status {
    RETURN_IF_ERROR(all.ReduceScatterSum(data, share));
    const int64_t gathered = share * bytes_to_a_number;
    auto* const rows = reinterpret_cast<std::byte*>(data);
    return all.AllGather(rows + all.rank() * gathered, gathered, rows);
  });
}

// Ours, whichever a group would take, where the devices reach each other. argument: replays of each
// measurement, MiB of the longest.
absl::Status Latencies(const LocalRank& rank) {
  RETURN_IF_ERROR(UseDevice(rank));
  const std::vector<std::string> argument = absl::StrSplit(rank.argument, ',');
  const int repeats = std::stoi(argument[0]);
  const int64_t longest = int64_t{std::stoi(argument[1])} << 20;
  const Stream stream;
  NcclOptions always_ours = Options(true);
  always_ours.deterministic = true;
  // As a backend's stream, where ranks do not share a device.
  const bool overlaps = NumDevices() >= rank.size && cuda::KernelsCanOverlap(stream.get());
  ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> ours,
                   MakeGroup(rank, cuda::KernelStream(stream.get(), overlaps), always_ours));
  ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> nccls,
                   MakeGroup(rank, stream.get(), Options(false)));
  const auto compare = [&](const char* what, auto time, int64_t our_longest) -> absl::Status {
    if (rank.rank == 0) {
      std::printf("%s %d ranks   KiB        our us   NCCL us\n", what, rank.size);
    }
    for (int64_t bytes = 4 << 10; bytes <= std::min(longest, our_longest); bytes *= 2) {
      ASSIGN_OR_RETURN(const double our_us, time(*ours, bytes, repeats, stream.get()));
      ASSIGN_OR_RETURN(const double nccl_us, time(*nccls, bytes, repeats, stream.get()));
      if (rank.rank != 0) continue;
      std::printf("%24d  %12.1f  %8.1f\n", static_cast<int>(bytes >> 10), our_us, nccl_us);
      std::fflush(stdout);
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(compare("sums over", &TimeAllReduce, PeerCollectives::kMaxFloats * 4));
  RETURN_IF_ERROR(
      compare("rows of  ", &TimeAllGather, PeerCollectives::kMaxGatheredBytes * rank.size));
  if (rank.rank == 0) {
    std::printf("long sums over %d ranks   MiB   all-reduce us   divided, bf16 us   e4m3 us\n",
                rank.size);
  }
  for (int64_t bytes = 1 << 20; bytes <= longest; bytes *= 2) {
    ASSIGN_OR_RETURN(const double whole_us, TimeAllReduce(*nccls, bytes, repeats, stream.get()));
    ASSIGN_OR_RETURN(const double bf16_us, TimeDivided(*nccls, bytes, 2, repeats, stream.get()));
    ASSIGN_OR_RETURN(const double e4m3_us, TimeDivided(*nccls, bytes, 1, repeats, stream.get()));
    if (rank.rank != 0) continue;
    std::printf("%29d  %14.1f  %17.1f  %8.1f\n", static_cast<int>(bytes >> 20), whole_us, bf16_us,
                e4m3_us);
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

// ---- what they are asked ----

class DeviceRanksTest : public ::testing::TestWithParam<int> {};

TEST_P(DeviceRanksTest, SumsAreTheTreeOfNeighboursToTheBit) {
  EXPECT_THAT(RunLocalRanks({GetParam(), "sums"}), Each(0));
}

TEST_P(DeviceRanksTest, RecordedSumsCountOn) {
  EXPECT_THAT(RunLocalRanks({GetParam(), "recorded sums"}), Each(0));
}

TEST_P(DeviceRanksTest, LongSumsAreThatTreeToo) {
  EXPECT_THAT(RunLocalRanks({GetParam(), "long sums"}), Each(0));
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceRanksTest, ::testing::Values(2, 4, 8));

TEST(DeviceRanksEndTest, APeerThatIsKilledEndsTheWaitForIt) {
  EXPECT_THAT(RunLocalRanks({2, "loses a peer"}), ElementsAre(0, 128 + SIGKILL));
  EXPECT_THAT(RunLocalRanks({4, "loses a peer"}), ElementsAre(0, 128 + SIGKILL, 0, 0));
}

TEST(DeviceRanksLatencyTest, EverySizeIsMeasured) {
  ::testing::internal::CaptureStdout();
  EXPECT_THAT(RunLocalRanks({2, "latencies", "1,1"}), Each(0));
  EXPECT_THAT(::testing::internal::GetCapturedStdout(),
              AllOf(HasSubstr("\n                    1024  "), HasSubstr("rows of   2 ranks"),
                    HasSubstr("\n                            1  ")));
}

int PrintLatencies(int argc, char** argv) {
  int num_ranks = 0;
  int repeats = 20;
  if (argc < 3 || !absl::SimpleAtoi(argv[2], &num_ranks) || num_ranks < 2 || num_ranks > 8 ||
      (argc > 3 && (!absl::SimpleAtoi(argv[3], &repeats) || repeats < 1))) {
    std::fprintf(stderr, "usage: device_ranks_test --latencies RANKS [REPEATS], 2 to 8 ranks\n");
    return 2;
  }
  const std::vector<int> statuses =
      RunLocalRanks({num_ranks, "latencies", absl::StrCat(repeats, ",128")});
  return *std::max_element(statuses.begin(), statuses.end());
}

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) {
  using namespace lockstep::testing;
  if (const auto status = RunIfLocalRank({{"sums", &Sums},
                                          {"recorded sums", &RecordedSums},
                                          {"long sums", &LongSums},
                                          {"loses a peer", &LosesAPeer},
                                          {"latencies", &Latencies}})) {
    return *status;
  }
  if (argc > 1 && std::strcmp(argv[1], "--latencies") == 0) return PrintLatencies(argc, argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
