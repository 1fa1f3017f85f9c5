// Conversions between element types, exhaustively.
#include "kernels/dtype.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(BF16Test, EveryValueSurvivesTheWayThereAndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const BF16 value = {static_cast<uint16_t>(bits)};
    const float wide = ToFloat(value);
    if (std::isnan(wide)) {
      ASSERT_TRUE(std::isnan(ToFloat(ToBF16(wide))));
    } else {
      ASSERT_EQ(ToBF16(wide).bits, bits);
    }
  }
}

TEST(BF16Test, RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7f80; ++bits) {  // positive, finite
    const double low = ToFloat(BF16{static_cast<uint16_t>(bits)});
    for (const uint32_t tail : {1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const uint32_t up = tail > 0x8000 || (tail == 0x8000 && bits % 2 == 1) ? 1 : 0;
      const float x = std::bit_cast<float>(bits << 16 | tail);
      ASSERT_GE(x, low);
      ASSERT_EQ(ToBF16(x).bits, bits + up) << std::hexfloat << x;
      ASSERT_EQ(ToBF16(-x).bits, (bits + up) | 0x8000);
    }
  }
}

TEST(F16Test, EveryValueWidensToItsDefinition) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int sign = (bits & 0x8000) != 0 ? -1 : 1;
    const int exponent = static_cast<int>(bits >> 10 & 0x1f);
    const int mantissa = static_cast<int>(bits & 0x3ff);
    const float got = ToFloat(F16{static_cast<uint16_t>(bits)});
    ASSERT_EQ(std::signbit(got), sign < 0);
    if (exponent == 0x1f && mantissa != 0) {
      ASSERT_TRUE(std::isnan(got));
    } else if (exponent == 0x1f) {
      ASSERT_TRUE(std::isinf(got));
    } else {
      const int scaled = exponent == 0 ? mantissa : mantissa + 1024;
      ASSERT_EQ(
          got, sign * std::ldexp(static_cast<double>(scaled), (exponent == 0 ? 1 : exponent) - 25));
    }
  }
}

TEST(F16Test, EveryValueSurvivesTheWayThereAndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float wide = ToFloat(F16{static_cast<uint16_t>(bits)});
    if (std::isnan(wide)) {
      ASSERT_TRUE(std::isnan(ToFloat(ToF16(wide))));
    } else {
      ASSERT_EQ(ToF16(wide).bits, bits);
    }
  }
}

TEST(F16Test, RoundsToNearestEvenAndToInfinityBeyondTheLargest) {
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {  // positive, finite, denormal ones, too
    const double low = ToFloat(F16{static_cast<uint16_t>(bits)});
    const double high = bits == 0x7bff ? 65536.0 : ToFloat(F16{static_cast<uint16_t>(bits + 1)});
    const auto middle = static_cast<float>((low + high) / 2);  // exact
    const float infinity = std::numeric_limits<float>::infinity();
    for (const float sign : {1.0f, -1.0f}) {
      const uint32_t sign_bit = sign < 0 ? 0x8000 : 0;
      ASSERT_EQ(ToF16(sign * middle).bits, sign_bit | (bits + bits % 2)) << bits;
      ASSERT_EQ(ToF16(sign * std::nextafter(middle, 0.0f)).bits, sign_bit | bits);
      ASSERT_EQ(ToF16(sign * std::nextafter(middle, infinity)).bits, sign_bit | (bits + 1));
    }
  }
  EXPECT_EQ(ToF16(3e38f).bits, 0x7c00);
  EXPECT_EQ(ToF16(-1e-30f).bits, 0x8000);
}

}  // namespace
}  // namespace lockstep
