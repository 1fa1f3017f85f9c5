// A rank's device that joins new groups after the old ones have ended, on GPUs, which are the
// emulation's, that have no room for both.
#include "runtime/worker/rank_device.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "tests/parallel/local_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kCount = 1000;
constexpr int64_t kHiddenStates = 1 << 16;
// Beside the groups, for what is tried when they are made (NcclOptions::connect_bytes).
constexpr int64_t kRoomForTrials = 1 << 20;

void PretendGpus(int num_gpus) {
  setenv("LOCKSTEP_CUDA_PLUGIN", LOCKSTEP_EMULATED_PLUGIN, /*overwrite=*/1);
  setenv("LOCKSTEP_CUDA_MEMORY_GIB", "0.5", 1);
  setenv("LOCKSTEP_CUDA_DEVICES", absl::StrCat(num_gpus, " GPU").c_str(), 1);
}

absl::StatusOr<std::unique_ptr<RankDevice>> OpenDevice(const LocalRank& rank, bool deterministic) {
  PretendGpus(rank.size);
  DeviceOptions options;
  options.gpu = GpuPlace{.gpu = rank.rank};
  options.deterministic = deterministic;
  return RankDevice::Open(options, DType::kBF16,
                          [](const std::string& notice) { ADD_FAILURE() << notice; });
}

absl::Status Join(RankDevice& device, RankGroups& host) {
  return device.Join(host, {.max_hidden_states = kHiddenStates, .bytes_back = 100});
}

// All that is left but for the trials'.
std::vector<DeviceBuffer> Fill(Backend& backend) {
  auto room = backend.Allocate(kRoomForTrials);
  EXPECT_TRUE(room.ok()) << room.status();
  std::vector<DeviceBuffer> buffers;
  for (int64_t bytes = int64_t{1} << 28; bytes >= 1 << 12; bytes /= 2) {
    for (auto buffer = backend.Allocate(bytes); buffer.ok(); buffer = backend.Allocate(bytes)) {
      buffers.push_back(*std::move(buffer));
    }
  }
  return buffers;
}

// Of ones, over the tensor parallel group, as part of a step that is kept.
absl::Status AddUpOnes(RankDevice& device, float* data) {
  const std::vector<float> ones(kCount, 1.0f);
  device.backend().CopyToDevice(data, ones.data(), kCount * sizeof(float));
  return device.backend().Repeat(StepKey(1),
                                 [&] { return device.groups().tp->AllReduceSum(data, kCount); });
}

absl::Status ExpectSums(RankDevice& device, float* data) {
  for (int i = 0; i < 3; ++i) {  // as it is, recorded, replayed
    RETURN_IF_ERROR(AddUpOnes(device, data));
    std::vector<float> sums(kCount);
    device.backend().CopyToHost(sums.data(), data, kCount * sizeof(float));
    EXPECT_THAT(sums, Each(static_cast<float>(device.groups().tp->size())));
  }
  RETURN_IF_ERROR(device.groups().pp->Barrier());
  return device.groups().tp->Health();
}

// ---- what ranks do ----

// argument: tp, pp, deterministic. All memory is taken but for the trials'. When the groups are
// aborted, other ranks' steps wait for rank 1's, and rank 1 comes late to join.
absl::Status Rejoins(const LocalRank& rank) {
  std::vector<int> numbers;
  for (const auto text : absl::StrSplit(rank.argument, ',')) {
    numbers.push_back(0);
    EXPECT_TRUE(absl::SimpleAtoi(text, &numbers.back()));
  }
  RankGroups host = rank.Groups(*ProcessGrid::Create(numbers[0], numbers[1]));
  ASSIGN_OR_RETURN(const std::unique_ptr<RankDevice> device, OpenDevice(rank, numbers[2] != 0));
  RETURN_IF_ERROR(Join(*device, host));
  ASSIGN_OR_RETURN(const DeviceBuffer data, device->backend().Allocate(kCount * sizeof(float)));
  RETURN_IF_ERROR(ExpectSums(*device, data.as<float>()));
  const std::vector<DeviceBuffer> others = Fill(device->backend());
  for (int life = 0; life < 2; ++life) {
    if (rank.rank != 1) RETURN_IF_ERROR(AddUpOnes(*device, data.as<float>()));
    // Groups end on all ranks when they do on one.
    RETURN_IF_ERROR(host.tp->Barrier());
    RETURN_IF_ERROR(host.pp->Barrier());
    device->AbortGroups();
    if (rank.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(150));
    RETURN_IF_ERROR(Join(*device, host));
    RETURN_IF_ERROR(ExpectSums(*device, data.as<float>()));
  }
  return absl::OkStatus();
}

absl::Status LosesAPeer(const LocalRank& rank) {
  RankGroups host = rank.Groups(*ProcessGrid::Create(rank.size, 1));
  ASSIGN_OR_RETURN(const std::unique_ptr<RankDevice> device, OpenDevice(rank, false));
  RETURN_IF_ERROR(Join(*device, host));
  RETURN_IF_ERROR(host.tp->Barrier());
  if (rank.rank == 1) raise(SIGKILL);
  device->AbortGroups();
  const absl::Status joined = Join(*device, host);
  EXPECT_TRUE(absl::IsUnavailable(joined)) << joined;
  return absl::OkStatus();
}

// One GPU is all of theirs, and steps have sums that would be timed. Rank 0 says why none is.
absl::Status SharesAGpu(const LocalRank& rank) {
  PretendGpus(1);
  RankGroups host = rank.Groups(*ProcessGrid::Create(rank.size, 1));
  DeviceOptions options;
  options.gpu = GpuPlace{.gpu = 0, .num_sharing = rank.size, .job_shares_gpus = true};
  std::vector<std::string> notices;
  ASSIGN_OR_RETURN(const std::unique_ptr<RankDevice> device,
                   RankDevice::Open(options, DType::kBF16,
                                    [&](const std::string& notice) { notices.push_back(notice); }));
  RETURN_IF_ERROR(device->Join(host, {.max_hidden_states = 4 * kHiddenStates, .bytes_back = 100}));
  const auto sharing = HasSubstr("2 ranks share GPU 0");
  if (rank.rank == 0) {
    EXPECT_THAT(notices, ElementsAre(sharing, HasSubstr("not timed, as rank 0 shares its GPU")));
  } else {
    EXPECT_THAT(notices, ElementsAre(sharing));
  }
  ASSIGN_OR_RETURN(const DeviceBuffer data, device->backend().Allocate(kCount * sizeof(float)));
  return ExpectSums(*device, data.as<float>());
}

// ---- what they are asked ----

TEST(RankDeviceTest, NewGroupsNeedNoRoomBesideTheOldOnes) {
  EXPECT_THAT(RunLocalRanks({2, "rejoins", "2,1,0"}), Each(0));
  EXPECT_THAT(RunLocalRanks({2, "rejoins", "1,2,0"}), Each(0));
  EXPECT_THAT(RunLocalRanks({4, "rejoins", "2,2,0"}), Each(0));
}

TEST(RankDeviceTest, DeterministicOnesNeedNoneEither) {
  EXPECT_THAT(RunLocalRanks({2, "rejoins", "2,1,1"}), Each(0));
}

TEST(RankDeviceTest, RanksOfOneGpuDoNotTimeWhatTheyExchange) {
  EXPECT_THAT(RunLocalRanks({2, "shares a GPU"}), Each(0));
}

TEST(RankDeviceTest, NobodyWaitsForAPeerThatIsGone) {
  EXPECT_THAT(RunLocalRanks({3, "loses a peer"}), ElementsAre(0, 128 + SIGKILL, 0));
}

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) {
  using namespace lockstep::testing;
  if (const auto status = RunIfLocalRank(
          {{"rejoins", &Rejoins}, {"shares a GPU", &SharesAGpu}, {"loses a peer", &LosesAPeer}})) {
    return *status;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
