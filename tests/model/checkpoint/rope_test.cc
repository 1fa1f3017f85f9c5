#include <algorithm>
#include <cmath>

#include "gtest/gtest.h"
#include "model/rope.h"

namespace lockstep {
namespace {

RopeShape Rope(int64_t head_dim, double theta, double factor) {
  RopeShape shape{.head_dim = head_dim, .theta = theta, .scaling = std::nullopt};
  if (factor > 0) shape.scaling = Llama3RopeScaling{.factor = factor};
  return shape;
}

struct Tables {
  std::vector<float> cos;
  std::vector<float> sin;
};

Tables TablesOf(const RopeShape& shape, int64_t begin, int64_t end) {
  const RopeAngles angles(shape);
  Tables tables;
  tables.cos.resize(static_cast<size_t>((end - begin) * angles.width()));
  tables.sin.resize(tables.cos.size());
  angles.Write(begin, end, tables.cos.data(), tables.sin.data());
  return tables;
}

struct Golden {
  int64_t position;
  int64_t pair;
  double cos;
  double sin;
};

// Computed in Python from the published formula, written out separately. Tolerance: one rounding to
// float.
void ExpectGolden(const RopeShape& shape, int64_t max_positions,
                  const std::vector<Golden>& values) {
  const Tables tables = TablesOf(shape, 0, max_positions);
  const int64_t half = shape.head_dim / 2;
  ASSERT_EQ(static_cast<int64_t>(tables.cos.size()), max_positions * half);
  ASSERT_EQ(tables.sin.size(), tables.cos.size());
  for (const Golden& golden : values) {
    const int64_t at = golden.position * half + golden.pair;
    EXPECT_NEAR(tables.cos[at], golden.cos, 6e-8) << golden.position << ", " << golden.pair;
    EXPECT_NEAR(tables.sin[at], golden.sin, 6e-8) << golden.position << ", " << golden.pair;
  }
}

TEST(RopeAngles, UnscaledMatchesGolden) {
  ExpectGolden(Rope(8, 10000.0, 0), 512,
               {{1, 0, 0.5403023058681398, 0.8414709848078965},
                {7, 1, 0.7648421872844884, 0.6442176872376911},
                {511, 3, 0.8722558941080137, 0.48904974715649274}});
}

TEST(RopeAngles, Llama31MatchesGoldenInAllThreeBands) {
  ExpectGolden(Rope(128, 500000.0, 8.0), 5001,
               {{1, 0, 0.5403023058681398, 0.8414709848078965},          // short wavelengths: kept
                {1000, 20, -0.6581203423130288, -0.752912753932208},     // kept
                {2199, 31, -0.3081045655126556, 0.9513524986619091},     // blended
                {5000, 33, 0.007327509301068743, 0.9999731534433526}});  // blended or stretched
}

TEST(RopeAngles, Llama32MatchesGolden) {
  ExpectGolden(Rope(64, 500000.0, 32.0), 5001,
               {{1000, 20, 0.9999632755852017, 0.00857015057708544},
                {5000, 17, 0.8844816810129057, 0.4665749199781152},
                {2199, 31, 0.9999999785530213, 0.000207108563411696}});
}

// Frequencies checked beside transformers' (_compute_yarn_parameters), which computes them in f32.
// Pairs before 23 are kept, those from 40 on stretched.
TEST(RopeAngles, YarnMatchesGoldenInAllThreeBands) {
  YarnRopeScaling yarn{.factor = 4.0,
                       .attention_factor = YarnAttentionFactor(4.0),
                       .original_max_position_embeddings = 32768};
  ExpectGolden({.head_dim = 128, .theta = 1e6, .scaling = yarn}, 131072,
               {{1, 0, 0.6152041098606474, 0.9581236329364153},
                {1000, 20, 0.8183501982057775, 0.7916943512980695},
                {5000, 30, 0.6517385398186974, -0.9336561832364728},
                {100000, 45, 0.06833969387515007, 1.1365767369701691},
                {131071, 63, 1.13768822767172, 0.046287032718537666}});
  yarn.truncate = false;
  yarn.beta_fast = 16.0;
  yarn.beta_slow = 2.0;
  yarn.attention_factor = 0.75;
  ExpectGolden({.head_dim = 128, .theta = 1e6, .scaling = yarn}, 5001,
               {{1000, 26, -0.6545039592101766, -0.3662302109032016},
                {5000, 33, -0.36980482074392335, 0.6524909153042322}});
}

TEST(RopeAngles, LinearMatchesGolden) {
  ExpectGolden({.head_dim = 128, .theta = 1e5, .scaling = LinearRopeScaling{4.0}}, 16384,
               {{1, 0, 0.9689124217106447, 0.24740395925452294},
                {1000, 20, 0.8457304392260683, 0.533610367371626},
                {16383, 63, 0.9987982894268056, 0.04900996876235457}});
}

TEST(RopeAngles, LongestWavelengthsAreStretchedByTheFactor) {
  const Tables plain = TablesOf(Rope(128, 500000.0, 0), 0, 9);
  const Tables scaled = TablesOf(Rope(128, 500000.0, 8.0), 0, 9);
  // The last pair turns 8 times slower: position 8 where position 1 was.
  EXPECT_FLOAT_EQ(scaled.sin[8 * 64 + 63], plain.sin[1 * 64 + 63]);
}

TEST(RopeAngles, PositionZeroDoesNotRotate) {
  const Tables tables = TablesOf(Rope(16, 10000.0, 0), 0, 1);
  for (const float c : tables.cos) EXPECT_EQ(c, 1.0f);
  for (const float s : tables.sin) EXPECT_EQ(s, 0.0f);
}

// An angle of a million radians is a double to within 1e-10, by either way, and so one in thousands
// lies on the other side of a rounding to f32.
TEST(RopeAngles, EveryEntryIsItsAnglesCosineAndSine) {
  constexpr int64_t kBegin = 999'937, kEnd = 1'000'193;  // not of whole turns
  const Tables tables = TablesOf(Rope(128, 500000.0, 0), kBegin, kEnd);
  int num_others = 0;
  for (int64_t position = kBegin; position < kEnd; ++position) {
    for (int64_t i = 0; i < 64; ++i) {
      const double angle =
          static_cast<double>(position) * std::pow(500000.0, -2.0 * static_cast<double>(i) / 128.0);
      const int64_t at = (position - kBegin) * 64 + i;
      EXPECT_NEAR(tables.cos[at], std::cos(angle), 6e-8) << position << ", " << i;
      EXPECT_NEAR(tables.sin[at], std::sin(angle), 6e-8) << position << ", " << i;
      num_others += tables.cos[at] != static_cast<float>(std::cos(angle));
      num_others += tables.sin[at] != static_cast<float>(std::sin(angle));
    }
  }
  EXPECT_LE(num_others, 2 * 256 * 64 / 1000);
}

TEST(RopeAngles, PartsAreThoseOfTheWhole) {
  const RopeShape shape = Rope(16, 10000.0, 8.0);
  const Tables whole = TablesOf(shape, 0, 200);
  const Tables part = TablesOf(shape, 61, 131);
  EXPECT_TRUE(std::equal(part.cos.begin(), part.cos.end(), whole.cos.begin() + 61 * 8));
  EXPECT_TRUE(std::equal(part.sin.begin(), part.sin.end(), whole.sin.begin() + 61 * 8));
  EXPECT_TRUE(TablesOf(shape, 5, 5).cos.empty());
}

}  // namespace
}  // namespace lockstep
