// Races in shared memory: what orders accesses, and what does not.
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/cuda_emulation/compiled/ptx_fixture.h"

namespace lockstep::cuda_emulation::ptx {
namespace {

using ::testing::HasSubstr;

class CompiledRacesTest : public PtxTest {
 protected:
  // The failure of a kernel whose threads have `mine` as the address of a word of their own in
  // shared memory, and `next` as that of the next thread's, which none beyond the last has.
  std::string RaceOf(const std::string& body, int threads = 64) {
    looks_for_races_ = true;
    constexpr char kAddresses[] = R"(
        .reg .b32 mine, next;
        mov.u32 %r1, dynamic;
        mad.lo.s32 mine, %r0, 4, %r1;
        add.s32 next, mine, 4;
        )";
    std::string failure = FailureOf(absl::StrCat(kAddresses, body), threads, 512);
    looks_for_races_ = false;
    return failure;
  }
};

TEST_F(CompiledRacesTest, AccessesThatNothingOrdersAreRaces) {
  EXPECT_THAT(RaceOf("st.shared.u32 [mine], 1; ld.shared.u32 %r5, [next];"), HasSubstr("a race"));
  EXPECT_THAT(RaceOf("ld.shared.u32 %r5, [next]; st.shared.u32 [mine], 1;"), HasSubstr("a race"));
  EXPECT_THAT(RaceOf("st.shared.u32 [%r1], 1;"), HasSubstr("a race"));
  EXPECT_EQ(RaceOf("ld.shared.u32 %r5, [%r1]; ld.shared.u32 %r5, [next];"), "");
  EXPECT_EQ(RaceOf("st.shared.u32 [mine], 1; ld.shared.u32 %r5, [mine];"), "");
  // Other bytes of the same word.
  EXPECT_EQ(RaceOf("add.s32 %r1, %r1, %r0; st.shared.u8 [%r1], 1; ld.shared.u8 %r5, [%r1];"), "");
}

TEST_F(CompiledRacesTest, BarriersOrderWhatIsBeforeThemAndNothingElse) {
  EXPECT_EQ(RaceOf("st.shared.u32 [mine], 1; bar.sync 0; ld.shared.u32 %r5, [next];"), "");
  EXPECT_THAT(RaceOf(R"(st.shared.u32 [mine], 1;
      bar.sync 0;
      ld.shared.u32 %r5, [next];
      st.shared.u32 [mine], 2;)"),
              HasSubstr("a race"));
  EXPECT_EQ(RaceOf(R"(st.shared.u32 [mine], 1;
      bar.sync 0;
      ld.shared.u32 %r5, [next];
      bar.sync 0;
      st.shared.u32 [mine], 2;)"),
            "");
  EXPECT_THAT(RaceOf(R"(st.shared.u32 [mine], 1;
      bar.sync 0;
      st.shared.u32 [mine], 2;
      ld.shared.u32 %r5, [next];)"),
              HasSubstr("a race"));
}

TEST_F(CompiledRacesTest, WarpsOrderTheirOwnLanes) {
  constexpr char kBody[] = R"(st.shared.u32 [mine], 1;
      bar.warp.sync -1;
      ld.shared.u32 %r5, [next];)";
  EXPECT_EQ(RaceOf(kBody, 32), "");
  EXPECT_THAT(RaceOf(kBody, 64), HasSubstr("a race"));  // the last lane's next is another warp's
  // Exchanges of registers order no memory.
  EXPECT_THAT(RaceOf(R"(st.shared.u32 [mine], 1;
      shfl.sync.bfly.b32 %r5|%p1, %r0, 1, 31, -1;
      ld.shared.u32 %r5, [next];)",
                     32),
              HasSubstr("a race"));
}

// The first 32 threads tell the others, who tell nobody.
TEST_F(CompiledRacesTest, WhoArrivesAtABarrierIsKnownToThoseWhoWait) {
  const std::string head = "setp.lt.u32 %p1, %r0, 32;\n @!%p1 bra $others;\n";
  EXPECT_EQ(RaceOf(head + R"(st.shared.u32 [mine], 1;
      bar.arrive 1, 64;
      ret;
      $others:
      bar.sync 1, 64;
      ld.shared.u32 %r5, [mine+-128];)"),
            "");
  EXPECT_THAT(RaceOf(head + R"(bar.arrive 1, 64;
      st.shared.u32 [mine], 1;
      ret;
      $others:
      bar.sync 1, 64;
      ld.shared.u32 %r5, [mine+-128];)"),
              HasSubstr("a race"));
}

TEST_F(CompiledRacesTest, AtomicsRaceWithPlainAccessesAlone) {
  EXPECT_EQ(RaceOf("atom.shared.add.u32 %r5, [%r1], 1;"), "");
  EXPECT_THAT(RaceOf("atom.shared.add.u32 %r5, [%r1], 1; ld.shared.u32 %r5, [%r1];"),
              HasSubstr("a race"));
}

}  // namespace
}  // namespace lockstep::cuda_emulation::ptx
