#include "kernels/base/philox.h"

#include <set>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

// Random123, tests/kat_vectors, "philox4x32 10".
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(TokenUniform, LiesInUnitIntervalAndHasItsMean) {
  double sum = 0.0;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    const double u = TokenUniform(7, 0, i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.01);  // five standard deviations
}

TEST(TokenUniform, EveryPartOfTheKeyMatters) {
  const std::set<double> draws = {TokenUniform(1, 0, 0), TokenUniform(uint64_t{1} << 32, 0, 0),
                                  TokenUniform(1, 1, 0), TokenUniform(1, 0, 1),
                                  TokenUniform(1, 0, uint64_t{1} << 32)};
  EXPECT_EQ(draws.size(), 5u);
  EXPECT_EQ(TokenUniform(1, 1, 0), TokenUniform(1, 1, 0));
}

}  // namespace
}  // namespace lockstep
