// Blocks of a KV cache that are kept in the host's memory, too, by the bodies of the host.
#include "gtest/gtest.h"
#include "kernels/cpu_backend_options.h"
#include "tests/kernels/kv_copies.h"

namespace lockstep::testing {
namespace {

TEST(KvBlockCopiesTest, BlocksGoAndComeBackByPlainLoops) {
  ExpectThatBlocksGoAndComeBack(*MakeReferenceBackend());
}

TEST(KvBlockCopiesTest, BlocksGoAndComeBackByTheCpu) {
  ExpectThatBlocksGoAndComeBack(*MakeCpuBackend({.num_threads = 2}).value());
}

TEST(KvBlockCopiesTest, WhatIsWrittenAfterwardsIsNotInTheCopy) {
  const auto backend = MakeReferenceBackend();
  KvCopies copies(*backend, {3, 4, 8}, 2);
  copies.Write(2, std::byte{1});
  copies.Offload({{2, 1}});
  backend->AwaitOffloads();
  copies.Write(2, std::byte{9});
  EXPECT_TRUE(copies.Host() == copies.host());
  EXPECT_TRUE(copies.Cache() == copies.cache());
}

}  // namespace
}  // namespace lockstep::testing
