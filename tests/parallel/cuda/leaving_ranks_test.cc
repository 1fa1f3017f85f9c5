// Groups of devices, each a process's, that end and are made anew. Nobody frees what another has
// open, which the emulated CUDA does not forgive (runtime/runtime_api.h): the process then fails.
#include <cuda_runtime.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_status.h"
#include "parallel/cuda/nccl_communicator.h"
#include "parallel/cuda/peer_collectives.h"
#include "tests/parallel/cuda/on_device.h"
#include "tests/parallel/local_ranks.h"
#include "tests/support/cuda_emulation/emulation.h"

namespace lockstep::testing {
namespace {

using cuda::MakeNcclCommunicator;
using cuda::NcclOptions;
using cuda::PeerCollectives;
using std::chrono::milliseconds;
using ::testing::Each;
using ::testing::ElementsAre;

// Long enough for the others to do what they would have had to wait with.
constexpr milliseconds kLate{150};

// `host`, from whose calls a rank that is late returns late.
class SlowHost final : public Communicator {
 public:
  SlowHost(Communicator& host, bool is_late) : host_(host), is_late_(is_late) {}
  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  absl::Status AllReduceSum(float* data, int64_t count) override {
    return host_.AllReduceSum(data, count);
  }
  absl::Status AllGather(const void* mine, int64_t bytes, void* all) override {
    const absl::Status status = host_.AllGather(mine, bytes, all);
    if (is_late_) std::this_thread::sleep_for(kLate);
    return status;
  }
  absl::Status Send(int peer, const void* data, int64_t bytes) override {
    return host_.Send(peer, data, bytes);
  }
  absl::Status Recv(int peer, void* data, int64_t bytes) override {
    return host_.Recv(peer, data, bytes);
  }
  bool Probe(int peer) override { return host_.Probe(peer); }
  absl::Status Barrier() override { return host_.Barrier(); }
  void Abort() override { host_.Abort(); }

 private:
  Communicator& host_;
  const bool is_late_;
};

RankGroups HostOf(const LocalRank& rank) {
  return rank.Groups(*ProcessGrid::Create(rank.size, /*pp=*/1));
}

NcclOptions Options() {
  NcclOptions options;
  options.connect_bytes = 4096;
  options.own_collectives = true;
  options.notice = [](const std::string& text) { ADD_FAILURE() << text; };
  options.start_patience = RanksTimeout() / 2;
  return options;
}

void ExpectSumOfOnes(Communicator& group, cudaStream_t stream) {
  std::vector<float> ones(1000, 1.0f);
  EXPECT_EQ(FromHost(group, stream).AllReduceSum(ones.data(), std::ssize(ones)), absl::OkStatus());
  EXPECT_THAT(ones, Each(static_cast<float>(group.size())));
}

// ---- what ranks do ----

// The others wait for a sum of rank 1's when the group is aborted, and rank 1 comes late to leave.
absl::Status Rejoins(const LocalRank& rank) {
  const RankGroups host = HostOf(rank);
  const Stream stream;
  const OnDevice data(nullptr, 4000, stream.get());
  const int64_t before = cuda_emulation::AllocatedBytes();
  for (int life = 0; life < 3; ++life) {
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> group,
                     MakeNcclCommunicator(*host.tp, stream.get(), Options()));
    ExpectSumOfOnes(*group, stream.get());
    if (rank.rank != 1) RETURN_IF_ERROR(group->AllReduceSum(data.as<float>(), 1000));
    RETURN_IF_ERROR(host.tp->Barrier());  // it ends on all ranks when it does on one
    group->Abort();
    if (rank.rank == 1) std::this_thread::sleep_for(kLate);
    RETURN_IF_ERROR(group->Disconnect(*host.tp));
    group.reset();
    EXPECT_EQ(cuda_emulation::AllocatedBytes(), before);
  }
  return absl::OkStatus();
}

// Without a meeting on the host: the group's own.
absl::Status LeavesTogether(const LocalRank& rank) {
  const RankGroups host = HostOf(rank);
  const Stream stream;
  const int64_t before = cuda_emulation::AllocatedBytes();
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> group,
                   MakeNcclCommunicator(*host.tp, stream.get(), Options()));
  if (rank.rank == 1) std::this_thread::sleep_for(kLate);
  group.reset();
  EXPECT_EQ(cuda_emulation::AllocatedBytes(), before);
  return absl::OkStatus();
}

// Rank 1 is gone when the others leave, rank 0 before the rest.
absl::Status LosesAPeer(const LocalRank& rank) {
  const RankGroups host = HostOf(rank);
  const Stream stream;
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> group,
                   MakeNcclCommunicator(*host.tp, stream.get(), Options()));
  RETURN_IF_ERROR(host.tp->Barrier());
  if (rank.rank == 1) raise(SIGKILL);
  group->Abort();
  if (rank.rank > 1) std::this_thread::sleep_for(kLate);
  const absl::Status left = group->Disconnect(*host.tp);
  EXPECT_TRUE(absl::IsUnavailable(left)) << left;
  group.reset();
  return absl::OkStatus();
}

// argument: "host", of a rank that the others cannot reach while they reach each other; "sum", of
// one that nobody waits for.
absl::Status IsRefused(const LocalRank& rank) {
  const RankGroups groups = HostOf(rank);
  SlowHost host(*groups.tp, /*is_late=*/rank.rank == 1);
  const Stream stream;
  const int64_t before = cuda_emulation::AllocatedBytes();
  const bool is_elsewhere = rank.argument == "host" && rank.rank == 2;
  const auto made = PeerCollectives::Create(
      host, stream.get(),
      {.machine = is_elsewhere ? "elsewhere" : "here",
       .check_patience = rank.argument == "sum" ? milliseconds(0) : milliseconds(30000)});
  EXPECT_TRUE(absl::IsFailedPrecondition(made.status())) << made.status();
  EXPECT_EQ(cuda_emulation::AllocatedBytes(), before);
  return groups.tp->Barrier();
}

// ---- what they are asked ----

class LeavingRanksTest : public ::testing::TestWithParam<int> {};

TEST_P(LeavingRanksTest, AnAbortedGroupIsGoneBeforeTheNext) {
  EXPECT_THAT(RunLocalRanks({GetParam(), "rejoins"}), Each(0));
}

TEST_P(LeavingRanksTest, AGroupIsLeftTogether) {
  EXPECT_THAT(RunLocalRanks({GetParam(), "leaves together"}), Each(0));
}

TEST_P(LeavingRanksTest, ATrialThatFailsLeavesNothing) {
  EXPECT_THAT(RunLocalRanks({GetParam(), "is refused", "sum"}), Each(0));
}

INSTANTIATE_TEST_SUITE_P(Ranks, LeavingRanksTest, ::testing::Values(2, 4));

TEST(LeavingRanksEndTest, MemoryThatNotAllReachLeavesNothing) {
  EXPECT_THAT(RunLocalRanks({3, "is refused", "host"}), Each(0));
}

TEST(LeavingRanksEndTest, WithAPeerThatIsGoneNobodyWaitsAndNobodyFrees) {
  EXPECT_THAT(RunLocalRanks({4, "loses a peer"}), ElementsAre(0, 128 + SIGKILL, 0, 0));
}

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) {
  using namespace lockstep::testing;
  if (const auto status = RunIfLocalRank({{"rejoins", &Rejoins},
                                          {"leaves together", &LeavesTogether},
                                          {"loses a peer", &LosesAPeer},
                                          {"is refused", &IsRefused}})) {
    return *status;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
