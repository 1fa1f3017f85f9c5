// What is counted of launches: sectors, turns of banks, instructions.
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/cuda_emulation/compiled/counts.h"
#include "tests/support/cuda_emulation/compiled/ptx_fixture.h"

namespace lockstep::cuda_emulation::ptx {
namespace {

class CompiledCountsTest : public PtxTest {
 protected:
  // The counts of one launch.
  LaunchCounts CountsOf(const std::string& body, int threads, size_t dynamic_bytes = 0) {
    CountLaunches(true);
    Run(body, threads, dynamic_bytes);
    CountLaunches(false);
    const std::vector<LaunchCounts> counts = TakeLaunchCounts();
    EXPECT_EQ(counts.size(), 1);
    return counts.at(0);
  }
};

// Each thread's 8 bytes of %out: 32 lanes fill 8 sectors.
TEST_F(CompiledCountsTest, SectorsOfGlobalMemoryAreCounted) {
  const LaunchCounts whole = CountsOf("st.global.u64 [%out], 1; ld.global.u64 %rd5, [%out];", 64);
  EXPECT_EQ(whole.sectors, 2 * 16);
  EXPECT_EQ(whole.fewest_sectors, 2 * 16);
  EXPECT_EQ(whole.sectors_read, 16);
  EXPECT_EQ(whole.sectors_written, 16);
  EXPECT_EQ(whole.threads, 64);
  // Four bytes of each eight: as many sectors, half as many would do.
  const LaunchCounts half = CountsOf("st.global.u32 [%out], 1;", 32);
  EXPECT_EQ(half.sectors, 8);
  EXPECT_EQ(half.fewest_sectors, 4);
  // One lane alone.
  const LaunchCounts one = CountsOf("setp.eq.u32 %p1, %r0, 5; @%p1 st.global.u32 [%out], 1;", 32);
  EXPECT_EQ(one.sectors, 1);
}

TEST_F(CompiledCountsTest, TurnsOfSharedMemorysBanksAreCounted) {
  const auto turns_of = [&](const std::string& instruction, int stride) {
    const LaunchCounts counts = CountsOf(
        absl::StrCat("mov.u32 %r2, dynamic; mad.lo.s32 %r2, %r0, ", stride, ", %r2; ", instruction),
        32, 8192);
    return std::pair(counts.turns, counts.fewest_turns);
  };
  EXPECT_EQ(turns_of("st.shared.u32 [%r2], 1;", 4), std::pair(1l, 1l));
  EXPECT_EQ(turns_of("st.shared.u32 [%r2], 1;", 8), std::pair(2l, 1l));
  EXPECT_EQ(turns_of("st.shared.u32 [%r2], 1;", 16), std::pair(4l, 1l));
  EXPECT_EQ(turns_of("st.shared.u32 [%r2], 1;", 128), std::pair(32l, 1l));
  EXPECT_EQ(turns_of("ld.shared.u32 %r3, [%r2];", 0), std::pair(1l, 1l));  // all the same word
  EXPECT_EQ(turns_of("st.shared.v4.u32 [%r2], {1, 2, 3, 4};", 16), std::pair(4l, 4l));
  EXPECT_EQ(turns_of("st.shared.v4.u32 [%r2], {1, 2, 3, 4};", 32), std::pair(8l, 4l));
  EXPECT_EQ(turns_of("st.shared.v2.u32 [%r2], {1, 2};", 8), std::pair(2l, 2l));
}

TEST_F(CompiledCountsTest, InstructionsAreCountedByWarps) {
  const double empty = CountsOf("", 64).instructions;
  EXPECT_EQ(CountsOf("add.s32 %r1, 1, 2; ex2.approx.f32 %f1, 0f3F800000;", 64).instructions,
            empty + 2 * 2);
  EXPECT_EQ(CountsOf("ex2.approx.f32 %f1, 0f3F800000;", 64).special, 2);
  EXPECT_EQ(CountsOf("setp.lt.u32 %p1, %r0, 16; @%p1 bra $end; add.s32 %r1, 1, 2; $end:", 32)
                .instructions,
            empty / 2 + 2 + 0.5);
}

}  // namespace
}  // namespace lockstep::cuda_emulation::ptx
