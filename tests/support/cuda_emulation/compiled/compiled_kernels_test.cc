// Kernels in PTX: what their instructions do, and what is refused.
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/cuda_emulation/compiled/ptx_fixture.h"
#include "tests/support/cuda_emulation/compiled/ptx_text.h"
#include "tests/support/cuda_emulation/compiled/symbols.h"

namespace lockstep::cuda_emulation::ptx {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CompiledKernelsTest : public PtxTest {
 protected:
  // What an instruction leaves in the fifth register of its kind.
  uint64_t U64(const std::string& instruction) {
    return Run(absl::StrCat(instruction, " st.global.u64 [%out], %rd5;")).at(0);
  }
  uint32_t U32(const std::string& instruction) {
    return static_cast<uint32_t>(
        Run(absl::StrCat(instruction, " cvt.u64.u32 %rd5, %r5; st.global.u64 [%out], %rd5;"))
            .at(0));
  }
  float F32(const std::string& instruction) {
    return std::bit_cast<float>(U32(absl::StrCat(instruction, " mov.b32 %r5, %f5;")));
  }
  bool IsTrue(const std::string& instruction) {
    return U32(absl::StrCat(instruction, " selp.u32 %r5, 1, 0, %p5;")) == 1;
  }
};

TEST_F(CompiledKernelsTest, IntegersWrapAround) {
  EXPECT_EQ(U32("add.s32 %r5, 2147483647, 1;"), 0x80000000u);
  EXPECT_EQ(U32("sub.s32 %r5, 0, 1;"), 0xffffffffu);
  EXPECT_EQ(U32("mul.lo.s32 %r5, 65536, 65537;"), 65536u);
  EXPECT_EQ(U32("mov.u32 %r1, -2; mul.hi.s32 %r5, %r1, 3;"), 0xffffffffu);
  EXPECT_EQ(U32("mov.u32 %r1, -2; mul.hi.u32 %r5, %r1, 3;"), 2u);
  EXPECT_EQ(U32("mad.lo.s32 %r5, 3, -4, 5;"), static_cast<uint32_t>(-7));
  EXPECT_EQ(U64("mul.wide.s32 %rd5, -3, 4;"), static_cast<uint64_t>(-12));
  EXPECT_EQ(U64("mul.wide.u32 %rd5, 0xffffffff, 4;"), 0x3fffffffcu);
  EXPECT_EQ(U64("mul.lo.s64 %rd5, -3, 4;"), static_cast<uint64_t>(-12));
}

TEST_F(CompiledKernelsTest, DivisionsRoundTowardsZero) {
  EXPECT_EQ(U32("div.s32 %r5, -7, 2;"), static_cast<uint32_t>(-3));
  EXPECT_EQ(U32("rem.s32 %r5, -7, 2;"), static_cast<uint32_t>(-1));
  EXPECT_EQ(U32("div.u32 %r5, 0xfffffff9, 2;"), 0x7ffffffcu);
  EXPECT_EQ(U64("div.s64 %rd5, 7, -2;"), static_cast<uint64_t>(-3));
}

TEST_F(CompiledKernelsTest, ShiftsBeyondTheLastBitLeaveNothingOrTheSign) {
  EXPECT_EQ(U32("shl.b32 %r5, 1, 31;"), 0x80000000u);
  EXPECT_EQ(U32("shl.b32 %r5, 1, 32;"), 0u);
  EXPECT_EQ(U32("shr.u32 %r5, 0x80000000, 40;"), 0u);
  EXPECT_EQ(U32("mov.u32 %r1, 0x80000000; shr.s32 %r5, %r1, 40;"), 0xffffffffu);
  EXPECT_EQ(U64("shr.s64 %rd5, -8, 1;"), static_cast<uint64_t>(-4));
}

TEST_F(CompiledKernelsTest, BytesAndBitsAreMoved) {
  EXPECT_EQ(U32("prmt.b32 %r5, 0x44332211, 0x88776655, 0x7410;"), 0x88552211u);
  EXPECT_EQ(U32("prmt.b32 %r5, 0x00800000, 0, 0xa0a1;"), 0xff00ff00u);  // signs repeated
  EXPECT_EQ(U32("bfi.b32 %r5, 0xff, 0x11111111, 8, 4;"), 0x11111f11u);
  EXPECT_EQ(U64("mov.u32 %r1, 1; mov.u32 %r2, 2; mov.b64 %rd5, {%r1, %r2};"), 0x200000001u);
  EXPECT_EQ(U32("mov.b64 {%r4, %r5}, 0x700000005;"), 7u);
  EXPECT_EQ(U32("mov.b32 {%rs1, %rs2}, 0x00070005; cvt.u32.u16 %r5, %rs2;"), 7u);
  EXPECT_EQ(U32("not.b32 %r5, 0x0f;"), 0xfffffff0u);
}

TEST_F(CompiledKernelsTest, FloatsAreRoundedAsTheInstructionSays) {
  EXPECT_EQ(F32("fma.rn.f32 %f5, 0f3F800001, 0f3F800001, 0fBF800002;"), std::ldexp(1.0f, -46));
  EXPECT_EQ(F32("fma.rm.f32 %f5, 0f3F800001, 0f3F800001, 0f00000000;"),
            std::bit_cast<float>(0x3f800002u));
  EXPECT_EQ(F32("fma.rm.f32 %f5, 0fBF800001, 0f3F800001, 0f00000000;"),
            std::bit_cast<float>(0xbf800003u));
  EXPECT_EQ(F32("cvt.sat.f32.f32 %f5, 0fC0000000;"), 0.0f);
  EXPECT_EQ(F32("cvt.sat.f32.f32 %f5, 0f40000000;"), 1.0f);
  EXPECT_EQ(F32("cvt.sat.f32.f32 %f5, 0f7FC00000;"), 0.0f);
  EXPECT_EQ(F32("max.f32 %f5, 0f7FC00000, 0f40000000;"), 2.0f);  // the number of a number and none
  EXPECT_EQ(F32("cvt.rn.f32.s64 %f5, 16777217;"), 16777216.0f);
  EXPECT_EQ(F32("ex2.approx.ftz.f32 %f5, 0fFF800000;"), 0.0f);
}

TEST_F(CompiledKernelsTest, NumbersBecomeIntegersWithinTheirBounds) {
  EXPECT_EQ(U64("cvt.rzi.s64.f64 %rd5, 0dC004000000000000;"), static_cast<uint64_t>(-2));  // -2.5
  EXPECT_EQ(U32("cvt.rzi.s32.f32 %r5, 0f7F800000;"), 0x7fffffffu);
  EXPECT_EQ(U32("cvt.rni.s32.f32 %r5, 0f40200000;"), 2u);  // 2.5
  EXPECT_EQ(U32("cvt.rzi.s32.f32 %r5, 0f7FC00000;"), 0u);
  EXPECT_EQ(U64("mov.u32 %r1, -1; cvt.s64.s32 %rd5, %r1;"), ~uint64_t{0});
  EXPECT_EQ(U64("mov.u32 %r1, -1; cvt.u64.u32 %rd5, %r1;"), 0xffffffffu);
}

// The first operand of a pair lies above.
TEST_F(CompiledKernelsTest, PairsOfNarrowNumbers) {
  EXPECT_EQ(U32("cvt.rn.bf16x2.f32 %r5, 0f3F800000, 0f40000000;"), 0x3f804000u);
  EXPECT_EQ(U32("cvt.rn.f16x2.f32 %r5, 0f3F800000, 0f40000000;"), 0x3c004000u);
  EXPECT_EQ(U32("cvt.rn.satfinite.e4m3x2.f32 %rs1, 0f3F800000, 0f7F000000; cvt.u32.u16 %r5, %rs1;"),
            0x387eu);
  EXPECT_EQ(F32("mov.u16 %rs1, 0x3c00; cvt.f32.f16 %f5, %rs1;"), 1.0f);
  EXPECT_EQ(U32("fma.rn.bf16x2 %r5, 0x3f804000, 0x40004000, 0x80008000;"), 0x40004080u);
}

TEST_F(CompiledKernelsTest, ComparisonsKnowWhatIsNoNumber) {
  EXPECT_TRUE(IsTrue("setp.lt.s32 %p5, -1, 1;"));
  EXPECT_FALSE(IsTrue("mov.u32 %r1, -1; setp.lt.u32 %p5, %r1, 1;"));
  EXPECT_FALSE(IsTrue("setp.neu.f32 %p5, 0f3F800000, 0f3F800000;"));
  EXPECT_TRUE(IsTrue("setp.neu.f32 %p5, 0f7FC00000, 0f7FC00000;"));
  EXPECT_FALSE(IsTrue("setp.ne.f32 %p5, 0f7FC00000, 0f3F800000;"));
  EXPECT_TRUE(IsTrue("setp.leu.f32 %p5, 0f7FC00000, 0f3F800000;"));
  EXPECT_TRUE(IsTrue("setp.nan.f32 %p5, 0f7FC00000, 0f3F800000;"));
  EXPECT_FALSE(IsTrue("setp.num.f32 %p5, 0f7FC00000, 0f3F800000;"));
  EXPECT_TRUE(IsTrue("setp.lt.s32 %p4|%p5, 1, 0;"));  // the opposite
  EXPECT_TRUE(IsTrue("setp.lt.s32 %p1, 0, 1; not.pred %p2, %p1; or.pred %p5, %p1, %p2;"));
}

TEST_F(CompiledKernelsTest, GuardsAndBranches) {
  EXPECT_EQ(U32(R"(mov.u32 %r5, 0;
      $next:
      add.s32 %r5, %r5, 3;
      setp.lt.s32 %p1, %r5, 10;
      @%p1 bra $next;
      @!%p1 add.s32 %r5, %r5, 100;)"),
            112u);
}

TEST_F(CompiledKernelsTest, ScopesHaveRegistersOfTheirOwn) {
  EXPECT_EQ(U32(R"({ .reg .b32 p; mov.u32 p, 1; mov.u32 %r1, p; }
      { .reg .b32 p; mov.u32 p, 2; add.s32 %r5, %r1, p; })"),
            3u);
}

TEST_F(CompiledKernelsTest, ThreadsShareWhatIsShared) {
  const std::string body = R"(
      shl.b32 %r1, %r0, 2;
      mov.u32 %r2, own;
      add.s32 %r3, %r2, %r1;
      st.shared.u32 [%r3], %r0;
      mov.u32 %r6, dynamic;
      add.s32 %r6, %r6, %r1;
      st.shared.u32 [%r6], %r1;
      bar.sync 0;
      xor.b32 %r4, %r1, 4;
      add.s32 %r3, %r2, %r4;
      ld.shared.u32 %r5, [%r3];
      mov.u32 %r6, dynamic;
      add.s32 %r6, %r6, %r4;
      ld.shared.u32 %r7, [%r6];
      shl.b32 %r7, %r7, 8;
      add.s32 %r5, %r5, %r7;
      cvt.u64.u32 %rd5, %r5;
      st.global.u64 [%out], %rd5;)";
  const std::vector<uint64_t> out = Run(body, 32, 128);
  for (uint64_t t = 0; t < out.size(); ++t) EXPECT_EQ(out[t], (t ^ 1) + ((t ^ 1) * 4 << 8)) << t;
}

TEST_F(CompiledKernelsTest, AtomicsOfAllThreadsCount) {
  const std::vector<uint64_t> out = Run(R"(
      mov.u32 %r2, common;
      st.shared.u32 [%r2], 0;
      bar.sync 0;
      atom.shared.add.u32 %r3, [%r2], 2;
      bar.sync 0;
      ld.shared.u32 %r5, [%r2];
      cvt.u64.u32 %rd5, %r5;
      st.global.u64 [%out], %rd5;)",
                                        64);
  EXPECT_THAT(out, ::testing::Each(128));
}

TEST_F(CompiledKernelsTest, LocalMemoryIsAThreadsOwn) {
  const std::vector<uint64_t> out = Run(R"(
      mov.u64 %rd3, depot;
      st.local.u32 [%rd3+4], %r0;
      bar.sync 0;
      ld.local.u32 %r5, [%rd3+4];
      cvt.u64.u32 %rd5, %r5;
      st.global.u64 [%out], %rd5;)",
                                        2);
  EXPECT_THAT(out, ElementsAre(0, 1));
}

// c: the segment's mask above, the last lane (of `up` the first) below.
TEST_F(CompiledKernelsTest, ShufflesStayInTheirSegments) {
  const auto shuffle = [&](const std::string& mode, const std::string& b, const std::string& c) {
    return Run(absl::StrCat("shfl.sync.", mode, ".b32 %r5|%p1, %r0, ", b, ", ", c,
                            ", -1; selp.u32 %r6, 256, 0, %p1; add.s32 %r5, %r5, %r6; "
                            "cvt.u64.u32 %rd5, %r5; st.global.u64 [%out], %rd5;"),
               32);
  };
  EXPECT_EQ(shuffle("bfly", "1", "31").at(6), 256u + 7);
  EXPECT_EQ(shuffle("idx", "3", "31").at(30), 256u + 3);
  EXPECT_EQ(shuffle("idx", "3", "0x1807").at(30), 256u + 27);  // segments of 8
  EXPECT_EQ(shuffle("up", "1", "0").at(0), 0u);
  EXPECT_EQ(shuffle("up", "1", "0").at(5), 256u + 4);
  EXPECT_EQ(shuffle("down", "2", "31").at(29), 256u + 31);
  EXPECT_EQ(shuffle("down", "2", "31").at(30), 30u);
}

TEST_F(CompiledKernelsTest, VectorsAndNarrowNumbersFillTheirRegisters) {
  EXPECT_EQ(U64(R"(st.global.v2.u32 [%out], {7, 9};
      ld.global.v2.u32 {%r1, %r2}, [%out];
      ld.global.u8 %rs1, [%out+4];
      ld.global.s8 %rd3, [%out];
      cvt.u64.u32 %rd5, %r2;
      add.s64 %rd5, %rd5, %rd3;)"),
            16u);
  EXPECT_EQ(U64("st.global.u64 [%out], -1; ld.global.s16 %rd5, [%out];"), ~uint64_t{0});
  EXPECT_EQ(U64("st.global.u64 [%out], -1; ld.global.u16 %rd5, [%out];"), 0xffffu);
}

TEST_F(CompiledKernelsTest, AccessesToNoMemoryOfTheKernelsAreFailures) {
  EXPECT_THAT(FailureOf("ld.global.u32 %r1, [%out+8];"),
              HasSubstr("no memory that a kernel may access: 4 bytes"));
  EXPECT_THAT(FailureOf("ld.global.u32 %r1, [%out+2];"), HasSubstr("not aligned"));
  EXPECT_THAT(FailureOf("mov.u32 %r1, own; st.shared.u32 [%r1+128], 0;"),
              HasSubstr("beyond the block's shared memory"));
  EXPECT_THAT(FailureOf("mov.u32 %r1, dynamic; st.shared.u32 [%r1+16], 0;", 1, 16),
              HasSubstr("beyond the block's shared memory"));
  EXPECT_THAT(FailureOf("mov.u64 %rd1, depot; st.local.u32 [%rd1+16], 0;"),
              HasSubstr("no memory that a kernel may access"));
  EXPECT_THAT(FailureOf("ld.global.u32 %r1, [%out+8];"), HasSubstr("kernel.ptx:"));
}

TEST_F(CompiledKernelsTest, ABarrierThatNotAllReachIsAFailure) {
  EXPECT_THAT(FailureOf(R"(setp.eq.u32 %p1, %r0, 0;
      @%p1 bra $other;
      bar.sync 0;
      ret;
      $other:
      bar.sync 0;)",
                        32),
              HasSubstr("a block can go no further"));
}

TEST_F(CompiledKernelsTest, WhatIsNotKnownIsRefusedByName) {
  EXPECT_THAT(Make("sin.approx.f32 %f1, %f2;").status().message(),
              HasSubstr("kernel.ptx:24: the instruction 'sin.approx.f32' is not known here"));
  EXPECT_THAT(Make("add.s32 %r1, %r99, 1;").status().message(),
              HasSubstr("'%r99' is not known here"));
  EXPECT_THAT(Make("bra $nowhere;").status().message(), HasSubstr("no label $nowhere"));
  EXPECT_THAT(Make("mul.lo.f16 %rs1, %rs2, %rs3;").status().message(), HasSubstr("'mul.lo.f16'"));
  EXPECT_THAT(ParseModule("a.ptx", ".version 9.0\n.func f() {}").status().message(),
              HasSubstr("a.ptx:2: '.func' is not known here"));
  EXPECT_THAT(ParseModule("a.ptx", ".entry f() {\n add.s32").status().message(),
              HasSubstr("a kernel without an end"));
}

TEST_F(CompiledKernelsTest, ParametersLieAsTheHostLaysThem) {
  const auto module = ParseModule(
      "a.ptx",
      ".entry f(.param .u32 a, .param .align 8 .b8 b[12], .param .u8 c, .param .u64 d) {}");
  ASSERT_TRUE(module.ok()) << module.status();
  const auto program = Assemble(*module, module->kernels.at(0));
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_THAT((*program)->parameter_offsets, ElementsAre(0, 8, 20, 24));
  EXPECT_EQ((*program)->parameter_bytes, 32);
}

void SomeKernel(uint64_t*) {}

TEST_F(CompiledKernelsTest, KernelsOfUnnamedNamespacesAreFound) {
  EXPECT_EQ(CommonName("_ZN2ls38_GLOBAL__N__ef9ec4fe_6_fp8_cu_d169c3df1fILi4EEEvPf"),
            CommonName("_ZN2ls12_GLOBAL__N_11fILi4EEEvPf"));
  EXPECT_EQ(CommonName("_ZN2lsL1fEv"), CommonName("_ZN2ls1fEv"));
  EXPECT_NE(CommonName("_ZN2ls1fILi4EEEvv"), CommonName("_ZN2ls1fILi8EEEvv"));
  const auto name = NameOfFunction(reinterpret_cast<const void*>(&SomeKernel));
  ASSERT_TRUE(name.ok()) << name.status();
  EXPECT_THAT(*name, HasSubstr("SomeKernel"));
}

}  // namespace
}  // namespace lockstep::cuda_emulation::ptx
