// Which kernels may overlap what ranks exchange: NCCL may leave more than a kernel in the stream;
// ours leave one that others may overlap. Ranks are threads with an emulated device each.
#include <functional>
#include <memory>

#include "gtest/gtest.h"
#include "parallel/cuda/nccl_communicator.h"
#include "parallel/cuda/peer_collectives.h"
#include "tests/parallel/cuda/on_device.h"
#include "tests/parallel/cuda/run_devices.h"

namespace lockstep::testing {
namespace {

using cuda::MakeNcclCommunicator;
using cuda::NcclOptions;

class HeldKernelsTest : public ::testing::TestWithParam<bool> {
 protected:
  // body gets the group, memory of 8 MiB and whether the kernel behind what was issued is held.
  using IsHeld = std::function<bool(const absl::Status& issued)>;
  void OnTwoRanks(bool own_collectives,
                  const std::function<void(Communicator&, float*, const IsHeld&)>& body) {
    NcclOptions options;
    options.workspace_bytes = 10000;
    options.connect_bytes = 4096;
    options.deterministic = GetParam();
    options.own_collectives = own_collectives;
    RunDevices(2, [&](int, Communicator& host) -> absl::Status {
      const Stream made;
      bool holds_next = false;
      cuda::KernelStream stream(made.get(), /*overlaps=*/true);
      stream.holds_next = &holds_next;
      ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                       MakeNcclCommunicator(host, stream, options));
      const OnDevice data(nullptr, int64_t{8} << 20, stream);
      stream.TakeHold();  // of the group's start
      body(*group, data.as<float>(), [&](const absl::Status& issued) {
        EXPECT_TRUE(issued.ok()) << issued;
        return stream.TakeHold();
      });
      return group->Barrier();
    });
  }
};

TEST_P(HeldKernelsTest, BehindNccl) {
  OnTwoRanks(/*own_collectives=*/false,
             [](Communicator& group, float* data, const IsHeld& is_held) {
               EXPECT_TRUE(is_held(group.AllReduceSum(data, 100)));
               EXPECT_TRUE(is_held(group.ReduceScatterSum(data, 100)));
               EXPECT_TRUE(is_held(group.AllGather(data + 100 * group.rank(), 400, data)));
               EXPECT_TRUE(is_held(group.AllToAll(data, 400, 400, data + 1000)));
             });
}

TEST_P(HeldKernelsTest, NotBehindOurOwn) {
  OnTwoRanks(/*own_collectives=*/true, [](Communicator& group, float* data, const IsHeld& is_held) {
    EXPECT_FALSE(is_held(group.AllReduceSum(data, 100)));
    EXPECT_FALSE(is_held(group.AllGather(data + 100 * group.rank(), 400, data)));
    const int64_t long_bytes = cuda::PeerCollectives::kMaxGatheredBytes + 16;
    EXPECT_TRUE(is_held(group.AllGather(data + long_bytes / 4 * group.rank(), long_bytes, data)));
  });
}

INSTANTIATE_TEST_SUITE_P(Sums, HeldKernelsTest, ::testing::Bool());

}  // namespace
}  // namespace lockstep::testing
