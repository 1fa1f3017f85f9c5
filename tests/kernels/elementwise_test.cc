// Embed, AddRmsNorm, SiluMul, GatherRows and Add against their twins, bit for bit; Exp against the
// C library.
#include <vector>

#include "kernels/cpu/exp.h"
#include "tests/kernels/kernel_fixture.h"

namespace lockstep::testing {
namespace {

const std::vector<int64_t> kSizes = {1, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100, 2049};

class ElementwiseTest : public KernelTest {};

TEST_P(ElementwiseTest, AddRmsNormEqualsTwin) {
  Random random(1);
  const auto body = Body(2);
  for (const int64_t hidden : kSizes) {
    for (const int64_t num_tokens : {1, 2, 5}) {
      for (const bool with_delta : {false, true}) {
        const std::vector<float> x = random.Normals(num_tokens * hidden);
        const std::vector<float> delta = random.Normals(num_tokens * hidden);
        const std::vector<float> weight = random.Normals(hidden);
        const auto run = [&](Backend& backend) {
          Padded residual(x), d(delta), w(weight), out(num_tokens * hidden);
          backend.AddRmsNorm({residual.data(), with_delta ? d.data() : nullptr, w.data(), 1e-5f,
                              num_tokens, hidden, out.data()});
          residual.ExpectEdgesUntouched();
          out.ExpectEdgesUntouched();
          return std::pair(residual.values(), out.values());
        };
        const auto [residual, out] = run(*body);
        const auto [want_residual, want_out] = run(*reference_);
        ASSERT_TRUE(SameBits(residual, want_residual)) << hidden;
        ASSERT_TRUE(SameBits(out, want_out)) << hidden;
      }
    }
  }
}

TEST_P(ElementwiseTest, SiluMulEqualsTwin) {
  Random random(2);
  for (const int num_threads : {1, 3}) {
    const auto body = Body(num_threads);
    for (const int64_t width : kSizes) {
      for (const int64_t num_tokens : {1, 2, 5}) {
        const std::vector<float> x = random.Wild(num_tokens * 2 * width);
        const auto run = [&](Backend& backend) {
          Padded in(x), out(num_tokens * width);
          backend.SiluMul({in.data(), num_tokens, width, out.data()});
          out.ExpectEdgesUntouched();
          return out.values();
        };
        ASSERT_TRUE(SameBits(run(*body), run(*reference_))) << width;
      }
    }
  }
}

// Every 4001st float, and those around the borders of the exponential.
TEST_P(ElementwiseTest, SiluEqualsTwinOverTheWholeLine) {
  std::vector<float> gate;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 4001) {
    gate.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  for (const float border : {cpu::kExpZeroBelow, cpu::kExpInfinityAbove}) {
    for (const float sign : {1.0f, -1.0f}) {
      gate.push_back(sign * border);
      gate.push_back(std::nextafter(sign * border, 1000.0f));
      gate.push_back(std::nextafter(sign * border, -1000.0f));
    }
  }
  const auto width = static_cast<int64_t>(gate.size());
  std::vector<float> x = gate;
  x.resize(2 * width, 1.0f);
  std::vector<float> got(width);
  std::vector<float> want(width);
  Body()->SiluMul({x.data(), 1, width, got.data()});
  reference_->SiluMul({x.data(), 1, width, want.data()});
  EXPECT_TRUE(SameBits(got, want));
}

TEST_P(ElementwiseTest, EmbedEqualsTwinAndIsZeroOutsideTheShard) {
  Random random(3);
  constexpr int64_t kRows = 9;
  const std::vector<int32_t> ids = {20, 28, 19, 29,
                                    24, -1, 0,  2000000000};  // the shard holds 20..28
  const auto body = Body(2);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t hidden : kSizes) {
      const std::vector<float> wide = random.Wild(kRows * hidden);
      std::vector<BF16> narrow(wide.size());
      for (size_t i = 0; i < wide.size(); ++i) narrow[i] = ToBF16(wide[i]);
      const void* table =
          dtype == DType::kF32 ? static_cast<const void*>(wide.data()) : narrow.data();
      const auto run = [&](Backend& backend) {
        Padded out(static_cast<int64_t>(ids.size()) * hidden);
        backend.Embed({table, dtype, kRows, 20, hidden, ids.data(),
                       static_cast<int64_t>(ids.size()), out.data()});
        out.ExpectEdgesUntouched();
        return out.values();
      };
      const std::vector<float> got = run(*body);
      ASSERT_TRUE(SameBits(got, run(*reference_)));
      for (int64_t i = 2 * hidden; i < 4 * hidden; ++i) ASSERT_EQ(got[i], 0.0f);
    }
  }
}

TEST_P(ElementwiseTest, EmbedLeavesZerosWithoutSignAndDenormalsAsTheyAre) {
  const std::vector<float> table = {-0.0f, 0.0f, -1e-40f, 1e-45f, -2.0f};
  const std::vector<int32_t> ids = {0};
  std::vector<float> out(table.size());
  Body(1)->Embed({table.data(), DType::kF32, 1, 0, std::ssize(table), ids.data(), 1, out.data()});
  EXPECT_TRUE(SameBits(out, std::vector<float>{0.0f, 0.0f, -1e-40f, 1e-45f, -2.0f}));
}

TEST_P(ElementwiseTest, GatherRowsAndAddEqualTwin) {
  Random random(4);
  const auto body = Body(3);
  const std::vector<int32_t> rows = {4, 0, 4, 2};
  for (const int64_t width : kSizes) {
    const std::vector<float> in = random.Wild(5 * width);
    const std::vector<float> src = random.Wild(4 * width);
    const auto run = [&](Backend& backend) {
      Padded out(4 * width), addend(src);
      backend.GatherRows(in.data(), rows.data(), 4, width * 4, out.data());
      backend.Add(out.data(), addend.data(), DType::kF32, 4 * width);
      out.ExpectEdgesUntouched();
      return out.values();
    };
    ASSERT_TRUE(SameBits(run(*body), run(*reference_))) << width;
  }
}

TEST_P(ElementwiseTest, Bf16RoundingEqualsScalarForEveryUpperHalf) {
  std::vector<float> in;
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      in.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  std::vector<uint16_t> got(in.size());
  GetParam()->round_bf16(in.data(), static_cast<int64_t>(in.size()), got.data());
  for (size_t i = 0; i < in.size(); ++i)
    ASSERT_EQ(got[i], ToBF16(in[i]).bits) << std::bit_cast<uint32_t>(in[i]);
}

TEST_P(ElementwiseTest, Bf16WideningEqualsScalarForAllValues) {
  std::vector<uint16_t> in(0x10000);
  for (uint32_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint16_t>(i);
  std::vector<float> got(in.size());
  GetParam()->widen_bf16(in.data(), static_cast<int64_t>(in.size()), got.data());
  for (uint32_t i = 0; i < in.size(); ++i) ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), i << 16);
}

// In every place of a vector, and in what is left of one.
TEST_P(ElementwiseTest, E4m3WideningEqualsScalarForAllValues) {
  std::vector<uint8_t> in(3 * 0x100 + 77);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint8_t>(i * 7);
  for (size_t count = in.size() - 130; count <= in.size(); ++count) {
    std::vector<uint16_t> got(count + 1, 0xabcd);
    GetParam()->widen_e4m3(in.data(), static_cast<int64_t>(count), got.data());
    ASSERT_EQ(got[count], 0xabcd) << count;
    for (size_t i = 0; i < count; ++i) {
      const float want = ToFloat(E4M3{in[i]});
      const float wide = ToFloat(BF16{got[i]});
      ASSERT_TRUE(std::isnan(want) ? std::isnan(wide) : wide == want) << int{in[i]};
      ASSERT_EQ(std::signbit(wide), std::signbit(want)) << int{in[i]};
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, ElementwiseTest, ::testing::ValuesIn(FloatKernelsUnderTest()),
                         KernelsName);

TEST(Exp, IsWithinTwoUnitsInTheLastPlace) {
  for (float x = cpu::kExpZeroBelow; x < cpu::kExpInfinityAbove; x += 0.0037f) {
    const double want = std::exp(static_cast<double>(x));
    const double unit = std::ldexp(1.0, std::ilogb(want) - 23);
    ASSERT_LE(std::abs(cpu::Exp(x) - want), 2 * unit) << x;
  }
}

TEST(Exp, EndsAreZeroInfinityAndNan) {
  EXPECT_EQ(cpu::Exp(0.0f), 1.0f);
  EXPECT_EQ(cpu::Exp(-0.0f), 1.0f);
  EXPECT_EQ(cpu::Exp(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_EQ(cpu::Exp(std::numeric_limits<float>::infinity()),
            std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(cpu::Exp(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace lockstep::testing
