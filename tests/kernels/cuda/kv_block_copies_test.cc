// Blocks of a KV cache that are kept in the host's memory, too: all sizes, and what is waited for.
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/kv_copy_stream.h"
#include "tests/kernels/kv_copies.h"
#ifdef LOCKSTEP_CUDA_EMULATION
#include "tests/support/cuda_emulation/emulation.h"
#endif

namespace lockstep::testing {
namespace {

using cuda::CudaBackend;

constexpr std::byte kOne{1};
constexpr std::byte kNine{9};

class CudaKvBlockCopiesTest : public ::testing::Test {
 protected:
  // What was issued to the backend's stream is done, and of what others do only what that waits
  // for.
  void WaitForTheStream() {
    const auto mark = backend_->MakeMark().value();
    mark->Set();
    mark->WaitUntilReached();
  }

  std::unique_ptr<CudaBackend> backend_ = CudaBackend::Create({.deterministic = true}).value();
};

TEST_F(CudaKvBlockCopiesTest, BlocksGoAndComeBack) { ExpectThatBlocksGoAndComeBack(*backend_); }

// Pieces longer than what all thread blocks copy at once.
TEST_F(CudaKvBlockCopiesTest, FewThreadBlocksCopyLongPieces) {
  KvCopies copies(*backend_, {2, 3, 600'016}, 2);
  copies.Offload({{2, 0}, {0, 1}});
  backend_->AwaitOffloads();
  copies.Restore({{1, 0}});
  copies.Prefetch({{0, 0}});
  backend_->AwaitPrefetches();
  EXPECT_TRUE(copies.Cache() == copies.cache());
  EXPECT_TRUE(copies.Host() == copies.host());
}

TEST_F(CudaKvBlockCopiesTest, CopiesHoldWhatWasWrittenBeforeAndNothingOfLater) {
  KvCopies copies(*backend_, {3, 4, 32}, 3);
  copies.Write(2, kOne);
  copies.Offload({{2, 1}});
  copies.Offload({{3, 0}});  // a second one, before the first is waited for
  backend_->AwaitOffloads();
  copies.Write(2, kNine);
  copies.Write(3, kNine);
  WaitForTheStream();
  EXPECT_TRUE(copies.Host() == copies.host());
  EXPECT_TRUE(copies.Cache() == copies.cache());
}

TEST_F(CudaKvBlockCopiesTest, WhatIsAwaitedMayBeRestoredAtOnceAndReplaced) {
  KvCopies copies(*backend_, {3, 4, 48}, 2);
  copies.Write(0, kOne);
  copies.Offload({{0, 1}});
  backend_->AwaitOffloads();
  copies.Write(2, kNine);
  copies.Restore({{2, 1}});  // over the nines, by the ones
  copies.Write(0, kNine);
  copies.Offload({{0, 1}});  // after the restore has read the place
  backend_->AwaitOffloads();
  EXPECT_TRUE(copies.Cache() == copies.cache());
  EXPECT_TRUE(copies.Host() == copies.host());
}

TEST_F(CudaKvBlockCopiesTest, WhatIsPrefetchedReplacesWhatWasThereAndIsReplaced) {
  KvCopies copies(*backend_, {3, 4, 48}, 2);
  copies.Write(2, kNine);
  copies.Prefetch({{2, 1}});  // over the nines
  copies.Prefetch({{1, 0}});  // a second one, before the first is waited for
  backend_->AwaitPrefetches();
  copies.Write(1, kOne);
  copies.Offload({{2, 0}, {1, 1}});  // over what was prefetched
  backend_->AwaitOffloads();
  EXPECT_TRUE(copies.Cache() == copies.cache());
  EXPECT_TRUE(copies.Host() == copies.host());
}

TEST_F(CudaKvBlockCopiesTest, SynchronizeWaitsForWhatNobodyAwaits) {
  KvCopies copies(*backend_, {3, 4, 32}, 2);
  copies.Prefetch({{1, 0}});
  copies.Offload({{2, 1}});
  backend_->Synchronize();
  EXPECT_TRUE(copies.Host() == copies.host());
  EXPECT_TRUE(copies.Cache() == copies.cache());
}

TEST_F(CudaKvBlockCopiesTest, RecordedStepsAreCopiedAsTheyWere) {
  KvCopies copies(*backend_, {1, 2, 16}, 5);
  const DeviceBuffer sum = backend_->Allocate(4).value();
  const DeviceBuffer one = backend_->Allocate(4).value();
  const DeviceBuffer places = backend_->AllocateOnHost(5 * 4).value();
  const float number = 1;
  backend_->CopyToDevice(one.data(), &number, 4);
  for (int64_t step = 0; step < 5; ++step) {
    const KvBlockCopy copy = {0, places.as<std::byte>() + 4 * step};
    ASSERT_TRUE(backend_
                    ->Repeat({7},
                             [&] {
                               backend_->BeginStep();
                               backend_->Add(sum.as<float>(), one.data(), DType::kF32, 1);
                               return absl::OkStatus();
                             })
                    .ok());
    backend_->OffloadKv({.cache = sum.as<std::byte>(),
                         .num_pieces = 1,
                         .num_blocks = 1,
                         .piece_bytes = 4,
                         .copies = {&copy, 1}});
    backend_->AwaitOffloads();
  }
  WaitForTheStream();
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(places.as<float>()[i], static_cast<float>(i + 1));
  }
}

#ifdef LOCKSTEP_CUDA_EMULATION
// Work is done as late as possible: what is not waited for is seen not to be.

TEST_F(CudaKvBlockCopiesTest, LaterWorkDoesNotWaitUntilItIsToldTo) {
  KvCopies copies(*backend_, {3, 4, 32}, 2);
  const std::vector<std::byte> before = copies.Host();
  copies.Offload({{2, 1}});
  WaitForTheStream();
  EXPECT_TRUE(copies.Host() == before);
  backend_->AwaitOffloads();
  EXPECT_TRUE(copies.Host() == before) << "the host waited";
  WaitForTheStream();
  EXPECT_TRUE(copies.Host() == copies.host());
}

TEST_F(CudaKvBlockCopiesTest, NorForWhatIsPrefetched) {
  KvCopies copies(*backend_, {3, 4, 32}, 2);
  const std::vector<std::byte> before = copies.Cache();
  copies.Prefetch({{2, 1}});
  EXPECT_TRUE(copies.Cache() == before);
  backend_->AwaitPrefetches();
  EXPECT_TRUE(copies.Cache() == copies.cache());
}

// By their own stream alone: whoever waits for the backend's hides a copy that began too early, or
// one that nobody waited for.
TEST_F(CudaKvBlockCopiesTest, CopiesBeginWhenEarlierWorkIsDoneAndEndWithTheirStream) {
  const DeviceBuffer block = backend_->Allocate(16).value();
  const DeviceBuffer place = backend_->AllocateOnHost(16).value();
  const KvBlockCopy copy = {0, place.as<std::byte>()};
  const KvBlockCopies copies = {block.as<std::byte>(), 1, 1, 16, {&copy, 1}};
  auto offload = cuda::KvCopyStream::Create(backend_->stream(), cuda::LaunchOffloadKv).value();
  backend_->Synchronize();
  const std::vector<std::byte> ones(16, kOne), nines(16, kNine);
  backend_->CopyToDevice(block.data(), ones.data(), 16);
  offload->Start(copies);
  offload->Synchronize();
  EXPECT_EQ(place.as<std::byte>()[15], kOne);
  backend_->CopyToDevice(block.data(), nines.data(), 16);
  offload->Start(copies);
  offload.reset();
  EXPECT_EQ(place.as<std::byte>()[15], kNine);
}

TEST_F(CudaKvBlockCopiesTest, WhereNothingIsOffloadedNothingIsIssued) {
  KvCopies copies(*backend_, {3, 4, 32}, 2);
  backend_->Synchronize();
  copies.Offload({});
  backend_->AwaitOffloads();
  copies.Restore({});
  copies.Prefetch({});
  backend_->AwaitPrefetches();
  EXPECT_EQ(cuda_emulation::NumWorkInStreams(), 0);
  copies.Offload({{1, 1}});
  backend_->AwaitOffloads();
  const int64_t issued = cuda_emulation::NumWorkInStreams();
  backend_->AwaitOffloads();
  EXPECT_EQ(cuda_emulation::NumWorkInStreams(), issued);
  EXPECT_EQ(issued, 5) << "two events, two waits, a kernel";
}

// Kernels that may begin early read a step's blocks as what was there before it.
TEST_F(CudaKvBlockCopiesTest, NoKernelBeginsBeforeWhatIsRestoredOrAwaited) {
  KvCopies copies(*backend_, {3, 4, 32}, 2);
  const DeviceBuffer gate_up = backend_->Allocate(2 * 64 * 4).value();
  const DeviceBuffer out = backend_->Allocate(64 * 4).value();
  const auto overlapping = [&] { backend_->SiluMul({gate_up.data(), 1, 64, out.data()}); };
  const auto begun_early = [&](const auto& issue) {
    backend_->Synchronize();
    const int64_t before = cuda_emulation::NumKernelsBegunEarly();
    overlapping();
    issue();
    overlapping();
    backend_->Synchronize();
    return cuda_emulation::NumKernelsBegunEarly() - before;
  };
  begun_early([] {});  // the first of all is held
  const int64_t plainly = begun_early([] {});
  EXPECT_GT(plainly, 0);
  EXPECT_LT(begun_early([&] { copies.Restore({{1, 1}}); }), plainly);
  const auto offload_and_await = [&] {
    copies.Offload({{1, 1}});
    backend_->AwaitOffloads();
  };
  EXPECT_LT(begun_early(offload_and_await), plainly);
  const auto prefetch_and_await = [&] {
    copies.Prefetch({{1, 1}});
    backend_->AwaitPrefetches();
  };
  EXPECT_LT(begun_early(prefetch_and_await), plainly);
}

TEST_F(CudaKvBlockCopiesTest, ThreadsMayTakeTurnsInAnyOrder) {
  for (const uint64_t order : {1, 2, 3}) {
    cuda_emulation::SetThreadOrder(order);
    KvCopies copies(*backend_, {7, 5, 4096 + 16}, 3, 1);
    copies.Offload({{4, 2}, {0, 0}});
    backend_->AwaitOffloads();
    copies.Restore({{1, 2}, {4, 0}});
    EXPECT_TRUE(copies.Cache() == copies.cache()) << order;
    EXPECT_TRUE(copies.Host() == copies.host()) << order;
  }
  cuda_emulation::SetThreadOrder(0);
}
#endif

}  // namespace
}  // namespace lockstep::testing
