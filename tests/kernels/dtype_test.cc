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

TEST(E4M3Test, EveryValueWidensToItsDefinition) {
  for (int bits = 0; bits < 0x100; ++bits) {
    const int sign = (bits & 0x80) != 0 ? -1 : 1;
    const int exponent = bits >> 3 & 15;
    const int mantissa = bits & 7;
    const float got = ToFloat(E4M3{static_cast<uint8_t>(bits)});
    ASSERT_EQ(std::signbit(got), sign < 0);
    if (exponent == 15 && mantissa == 7) {
      ASSERT_TRUE(std::isnan(got));
    } else {
      const int scaled = exponent == 0 ? mantissa : mantissa + 8;
      ASSERT_EQ(
          got, sign * std::ldexp(static_cast<double>(scaled), (exponent == 0 ? 1 : exponent) - 10));
    }
  }
}

TEST(E4M3Test, EveryValueIsABf16AndAnF16) {
  for (int bits = 0; bits < 0x100; ++bits) {
    const float wide = ToFloat(E4M3{static_cast<uint8_t>(bits)});
    if (std::isnan(wide)) continue;
    ASSERT_EQ(ToFloat(ToBF16(wide)), wide);
    ASSERT_EQ(ToFloat(ToF16(wide)), wide);
    ASSERT_EQ(ToE4M3(wide).bits, bits);
  }
}

TEST(E4M3Test, RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7e; ++bits) {  // positive, finite, denormal ones, too
    const float low = ToFloat(E4M3{static_cast<uint8_t>(bits)});
    const float high = ToFloat(E4M3{static_cast<uint8_t>(bits + 1)});
    const float middle = (low + high) / 2;  // exact
    const float infinity = std::numeric_limits<float>::infinity();
    for (const float sign : {1.0f, -1.0f}) {
      const uint32_t sign_bit = sign < 0 ? 0x80 : 0;
      ASSERT_EQ(ToE4M3(sign * middle).bits, sign_bit | (bits + bits % 2)) << bits;
      ASSERT_EQ(ToE4M3(sign * std::nextafter(middle, 0.0f)).bits, sign_bit | bits);
      ASSERT_EQ(ToE4M3(sign * std::nextafter(middle, infinity)).bits, sign_bit | (bits + 1));
    }
  }
}

TEST(E4M3Test, BeyondTheLargestIsTheLargestAndNanStaysNan) {
  for (const float beyond : {448.1f, 464.0f, 1e9f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(ToE4M3(beyond).bits, 0x7e) << beyond;
    EXPECT_EQ(ToE4M3(-beyond).bits, 0xfe) << beyond;
  }
  EXPECT_EQ(ToE4M3(std::numeric_limits<float>::quiet_NaN()).bits & 0x7f, 0x7f);
}

}  // namespace
}  // namespace lockstep
