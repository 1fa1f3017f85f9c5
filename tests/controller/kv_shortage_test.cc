#include "runtime/controller/kv_shortage.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/engine/spare_memory.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kSpare = kMostSpareBytes;

// A GPU of 100 GiB, of which a rank may fill 80; 10.25 are left, a quarter of which is spared. A
// block is 1 GiB, of 16 tokens.
KvShortage OnGpu() {
  return {.rank = "rank 3",
          .max_model_len = 240,
          .block_size = 16,
          .fitting_blocks = 10,
          .needed_blocks = 15,
          .block_bytes = kGiB,
          .max_batched_tokens = 2048,
          .max_num_seqs = 256,
          .memory = RankMemory{.device = {.total_bytes = 100 * kGiB,
                                          .budget_bytes = 80 * kGiB,
                                          .held_bytes = 68 * kGiB,
                                          .other_bytes = 2 * kGiB - kSpare,
                                          .left_bytes = 10 * kGiB + kSpare},
                               .weight_bytes = 60 * kGiB,
                               .batched_token_bytes = kGiB / 256}};
}

TEST(KvShortageTest, WhatIsTakenAndEachChangeThatIsEnough) {
  EXPECT_EQ(DescribeKvShortage(OnGpu()),
            "max_model_len 240 needs 15 KV blocks of 16 tokens (15.00 GiB), but only 10 (10.00 "
            "GiB) fit rank 3, whose part of its GPU's 100.00 GiB is 80.00 GiB: weights take 60.00 "
            "GiB, buffers of steps 8.00 GiB, libraries and recorded steps 1.75 GiB; raise "
            "--gpu-memory-utilization to 0.85, or lower --max-batched-tokens to 768, or keep the "
            "cache in 8 bits (--kv-cache-dtype fp8), or lower --max-model-len to 160");
}

TEST(KvShortageTest, AnFp8CacheIsHalfAsLarge) {
  KvShortage shortage = OnGpu();
  shortage.needed_blocks = 20;
  EXPECT_THAT(DescribeKvShortage(shortage), HasSubstr("--kv-cache-dtype fp8"));
  shortage.needed_blocks = 21;
  EXPECT_THAT(DescribeKvShortage(shortage), Not(HasSubstr("--kv-cache-dtype fp8")));
  shortage.needed_blocks = 15;
  shortage.is_fp8 = true;
  EXPECT_THAT(DescribeKvShortage(shortage), Not(HasSubstr("--kv-cache-dtype fp8")));
}

// What is suggested is enough, and the next smaller change is not.
TEST(KvShortageTest, ChangesAreTheSmallest) {
  KvShortage shortage = OnGpu();
  shortage.memory->device.left_bytes -= 1;
  shortage.memory->device.other_bytes += 1;
  EXPECT_THAT(DescribeKvShortage(shortage), HasSubstr("utilization to 0.86"));
  EXPECT_THAT(DescribeKvShortage(shortage), HasSubstr("tokens to 704"));  // 767 would be enough
  shortage.memory->device.left_bytes += kGiB / 2 + 1;
  EXPECT_THAT(DescribeKvShortage(shortage), HasSubstr("tokens to 896"));
}

TEST(KvShortageTest, NoMoreOfTheGpuThanTheDriverCanSpare) {
  KvShortage shortage = OnGpu();
  shortage.needed_blocks = 28;
  EXPECT_THAT(DescribeKvShortage(shortage), Not(HasSubstr("utilization to")));
  shortage.needed_blocks = 27;
  EXPECT_THAT(DescribeKvShortage(shortage), HasSubstr("utilization to 0.97"));
}

TEST(KvShortageTest, WhereOthersFillTheGpuALargerPartDoesNotHelp) {
  KvShortage shortage = OnGpu();
  EXPECT_THAT(DescribeKvShortage(shortage), Not(HasSubstr("other programs")));
  shortage.memory->device.left_bytes -= kGiB;  // although more of its part is
  shortage.memory->device.foreign_bytes = 25 * kGiB;
  EXPECT_THAT(DescribeKvShortage(shortage),
              AllOf(Not(HasSubstr("utilization to")),
                    HasSubstr(", and other programs and the driver hold 25.00 GiB (see ")));
  shortage = OnGpu();
  shortage.memory->device.other_bytes = 0;  // nobody knows
  EXPECT_THAT(DescribeKvShortage(shortage),
              AllOf(Not(HasSubstr("utilization to")), Not(HasSubstr("libraries"))));
}

TEST(KvShortageTest, StepsKeepATokenForEverySequence) {
  KvShortage shortage = OnGpu();
  shortage.max_num_seqs = 769;
  EXPECT_THAT(DescribeKvShortage(shortage), Not(HasSubstr("--max-batched-tokens")));
}

TEST(KvShortageTest, WithoutRoomForABlockNothingButMoreGpusHelps) {
  KvShortage shortage = OnGpu();
  shortage.max_model_len = 0;
  shortage.fitting_blocks = 0;
  shortage.needed_blocks = 1;
  shortage.memory->device.held_bytes = 118 * kGiB;
  shortage.memory->weight_bytes = 110 * kGiB;
  shortage.memory->device.left_bytes = -40 * kGiB;
  EXPECT_THAT(DescribeKvShortage(shortage),
              AllOf(HasSubstr("a model needs at least 1 KV block of 16 tokens (1.00 GiB), but only "
                              "0 (0.00 MiB) fit rank 3"),
                    EndsWith("; use more GPUs")));
}

// A cache that would fill all that is left needs a change, too.
TEST(KvShortageTest, WhatIsSparedIsAskedForBesideTheCache) {
  KvShortage shortage = OnGpu();
  shortage.needed_blocks = 11;
  shortage.memory->device.left_bytes = 11 * kGiB + kSpare - 1;
  shortage.memory->device.other_bytes -= kGiB - 1;
  EXPECT_THAT(DescribeKvShortage(shortage),
              AllOf(HasSubstr("utilization to 0.81"), HasSubstr("tokens to 1984")));
}

TEST(KvShortageTest, OfACacheThatWasAskedForTheGpuSetsNoLimit) {
  KvShortage shortage = OnGpu();
  shortage.is_asked_for = true;
  EXPECT_THAT(DescribeKvShortage(shortage),
              EndsWith("; give the KV cache more memory (--kv-cache-gib, --num-kv-blocks), or "
                       "keep the cache in 8 bits (--kv-cache-dtype fp8), or lower "
                       "--max-model-len to 160"));
}

TEST(SpareMemoryTest, WhatIsLeftHoldsTheCacheAndTheSpare) {
  for (const int64_t cache : {int64_t{0}, int64_t{30}, int64_t{31}, int64_t{1'000'003}, 7 * kGiB,
                              8 * kGiB - 1, 8 * kGiB, 500 * kGiB}) {
    const int64_t left = LeftBytesFor(cache);
    EXPECT_GE(left - SpareBytes(left), cache) << cache;
    EXPECT_LT(left - 1 - SpareBytes(std::max<int64_t>(left - 1, 0)), cache) << cache;
  }
}

TEST(KvShortageTest, OnCpus) {
  KvShortage shortage = OnGpu();
  shortage.memory.reset();
  EXPECT_THAT(DescribeKvShortage(shortage),
              EndsWith("but only 10 (10.00 GiB) fit rank 3: give the KV cache more memory "
                       "(--kv-cache-gib, --num-kv-blocks), or keep the cache in 8 bits "
                       "(--kv-cache-dtype fp8), or lower --max-model-len to 160"));
}

}  // namespace
}  // namespace lockstep
