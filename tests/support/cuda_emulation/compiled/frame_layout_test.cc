// Registers that share words of the frame: programs compute what they say all the same.
#include <array>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/cuda_emulation/compiled/ptx_fixture.h"

namespace lockstep::cuda_emulation::ptx {
namespace {

using ::testing::ElementsAre;

constexpr int kRegisters = 80;

// What is in a program's short and long registers, %x and %y.
struct Values {
  Values() {
    x.fill(~uint32_t{0});  // as nobody has written them
    y.fill(~uint64_t{0});
  }
  std::array<uint32_t, kRegisters> x;
  std::array<uint64_t, kRegisters> y;
};

// A piece of a program, and what it does.
struct Code {
  std::string text;
  std::function<void(Values&)> run;
};

class RandomPrograms {
 public:
  explicit RandomPrograms(int seed) : random_(seed) {}

  // `depth`: of branches and loops within each other.
  Code Sequence(int depth) {
    std::string text;
    std::vector<std::function<void(Values&)>> steps;
    for (int i = 0; i < 7; ++i) {
      Code step = Step(depth);
      absl::StrAppend(&text, step.text, "\n");
      steps.push_back(std::move(step.run));
    }
    return {text, [steps](Values& v) {
              for (const auto& step : steps) step(v);
            }};
  }

  int Register() { return static_cast<int>(random_() % kRegisters); }

 private:
  Code Step(int depth) {
    switch (random_() % (depth > 0 ? 7 : 5)) {
      case 0:
        return SetShort();
      case 1:
        return Join();
      case 2:
        return Split();
      case 3:
      case 4:
        return AddIfLess();
      case 5:
        return SkipUnlessLess(depth - 1);
      default:
        return Loop(depth - 1);
    }
  }

  Code SetShort() {
    const int to = Register();
    const auto number = static_cast<uint32_t>(random_() % 1000);
    return {absl::StrFormat("mov.u32 %%x%d, %d;", to, number),
            [=](Values& v) { v.x[to] = number; }};
  }
  Code Join() {
    const int to = Register(), low = Register(), high = Register();
    return {absl::StrFormat("mov.b64 %%y%d, {%%x%d, %%x%d};", to, low, high),
            [=](Values& v) { v.y[to] = v.x[low] | uint64_t{v.x[high]} << 32; }};
  }
  Code Split() {
    const int from = Register(), low = Register(), high = (low + 1) % kRegisters;
    return {absl::StrFormat("mov.b64 {%%x%d, %%x%d}, %%y%d;", low, high, from), [=](Values& v) {
              v.x[low] = static_cast<uint32_t>(v.y[from]);
              v.x[high] = static_cast<uint32_t>(v.y[from] >> 32);
            }};
  }
  // What has a guard may leave what was there.
  Code AddIfLess() {
    const int to = Register(), a = Register(), b = Register();
    return {absl::StrFormat("setp.lt.u32 %%q0, %%x%d, %%x%d; @%%q0 add.s32 %%x%d, %%x%d, 77;", a, b,
                            to, a),
            [=](Values& v) {
              if (v.x[a] < v.x[b]) v.x[to] = v.x[a] + 77;
            }};
  }
  Code SkipUnlessLess(int depth) {
    const int a = Register(), b = Register(), label = num_labels_++;
    const Code within = Sequence(depth);
    return {absl::StrFormat("setp.ge.u32 %%q0, %%x%d, %%x%d; @%%q0 bra $L%d;\n%s$L%d:", a, b, label,
                            within.text, label),
            [=](Values& v) {
              if (v.x[a] < v.x[b]) within.run(v);
            }};
  }
  Code Loop(int depth) {
    const int label = num_labels_++;
    const auto times = static_cast<int>(1 + random_() % 3);
    const Code within = Sequence(depth);
    return {absl::StrFormat("mov.u32 %%c%d, 0; $L%d:\n%sadd.s32 %%c%d, %%c%d, 1; "
                            "setp.lt.u32 %%q0, %%c%d, %d; @%%q0 bra $L%d;",
                            label, label, within.text, label, label, label, times, label),
            [=](Values& v) {
              for (int i = 0; i < times; ++i) within.run(v);
            }};
  }

  std::mt19937 random_;
  int num_labels_ = 0;
};

class FrameLayoutTest : public PtxTest {};

TEST_F(FrameLayoutTest, RandomProgramsComputeWhatTheySay) {
  for (int seed = 0; seed < 200; ++seed) {
    RandomPrograms programs(seed);
    const Code code = programs.Sequence(3);
    const std::array<int, 3> told = {programs.Register(), programs.Register(), programs.Register()};
    std::string body =
        absl::StrFormat("{ .reg .b32 %%x<%d>, %%c<1000>; .reg .b64 %%y<%d>; .reg .pred %%q0;\n",
                        kRegisters, kRegisters);
    absl::StrAppend(&body, code.text, "mov.u64 %rd5, 0;\n");
    for (const int r : told) {
      absl::StrAppendFormat(&body, "add.s64 %%rd5, %%rd5, %%y%d; cvt.u64.u32 %%rd6, %%x%d; ", r, r);
      absl::StrAppend(&body, "add.s64 %rd5, %rd5, %rd6;\n");
    }
    Values values;
    code.run(values);
    uint64_t expected = 0;
    for (const int r : told) expected += values.y[r] + values.x[r];
    EXPECT_THAT(Run(body + "st.global.u64 [%out], %rd5; }"), ElementsAre(expected))
        << "seed " << seed << "\n"
        << body;
    if (HasFailure()) break;
  }
}

// %r1 is written in the loop's first round alone, and read in each.
TEST_F(FrameLayoutTest, WhatAGuardSkipsKeepsItsValueFromRoundToRound) {
  EXPECT_THAT(Run(R"(mov.u32 %r1, 1; mov.u32 %r2, 0; mov.u32 %r3, 0;
      $round:
      setp.eq.u32 %p1, %r2, 0;
      @%p1 mov.u32 %r1, 7;
      add.s32 %r3, %r3, %r1;
      add.s32 %r2, %r2, 1;
      mov.u32 %r4, 100; mov.u32 %r5, %r4; mov.u32 %r6, %r5;
      setp.lt.u32 %p2, %r2, 3;
      @%p2 bra $round;
      cvt.u64.u32 %rd5, %r3; st.global.u64 [%out], %rd5;)"),
              ElementsAre(3 * 7));
}

// A thousand values, one after the other.
TEST_F(FrameLayoutTest, ValuesThatNobodyReadsAnyMoreTakeNoRoom) {
  std::string body = "{ .reg .b32 %x<1000>; mov.u32 %x0, 0;\n";
  for (int i = 1; i < 1000; ++i)
    absl::StrAppendFormat(&body, "add.s32 %%x%d, %%x%d, 3;\n", i, i - 1);
  absl::StrAppend(&body, "cvt.u64.u32 %rd5, %x999; st.global.u64 [%out], %rd5; }");
  const auto program = Make(body);
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_LT((*program)->frame.size(), 60u);
  EXPECT_THAT(Run(body), ElementsAre(999 * 3));
}

TEST_F(FrameLayoutTest, WhatNobodyHasWrittenIsNoNumberWhereverItIsRead) {
  EXPECT_THAT(Run(R"(mov.u32 %r1, 5; mov.u32 %r2, %r1; mov.u32 %r1, %r2;
      cvt.u64.u32 %rd5, %r3; st.global.u64 [%out], %rd5;)"),
              ElementsAre(0xffffffffu));
}

}  // namespace
}  // namespace lockstep::cuda_emulation::ptx
