// How groups of weights and of activations become integers with a scale.
#include "kernels/quantization.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/kernel_fixture.h"

namespace lockstep::testing {
namespace {

struct Group {
  float scale;
  std::vector<int> q;
};

Group Weights(const std::vector<float>& w, Quantization quantization) {
  std::vector<int8_t> q(w.size());
  const BF16 scale =
      QuantizeWeightGroup(w.data(), static_cast<int>(w.size()), quantization, q.data());
  return {ToFloat(scale), {q.begin(), q.end()}};
}

Group Activations(const std::vector<float>& x) {
  std::vector<int8_t> q(x.size());
  const float scale = QuantizeActivationGroup(x.data(), static_cast<int>(x.size()), q.data());
  return {scale, {q.begin(), q.end()}};
}

TEST(QuantizationTest, Int8MapsTheLargestTo127) {
  const Group group = Weights({127, -64, 0.5, 1.5, 0}, Quantization::kInt8);
  EXPECT_EQ(group.scale, 1.0f);
  EXPECT_EQ(group.q, (std::vector<int>{127, -64, 0, 2, 0}));  // ties to even
}

TEST(QuantizationTest, Int4TakesTheScaleOfLeastError) {
  // Multiples of 1 with an 8: m / -8 leaves no error.
  const Group exact = Weights({8, -7, 3, 0}, Quantization::kInt4);
  EXPECT_EQ(exact.scale, -1.0f);
  EXPECT_EQ(exact.q, (std::vector<int>{-8, 7, -3, 0}));
  // Multiples of 2 of which 15 is none: the nearest is m / -7.5.
  const Group wider = Weights({15, -14, 6, 4, -10, 2}, Quantization::kInt4);
  EXPECT_EQ(wider.scale, -2.0f);
  EXPECT_EQ(wider.q, (std::vector<int>{-8, 7, -3, -2, 5, -1}));
}

TEST(QuantizationTest, ActivationsKeepAnExactScale) {
  const Group group = Activations({-2.54f, 1.27f, 0.01f});
  EXPECT_EQ(group.scale, 2.54f / 127.0f);
  EXPECT_EQ(group.q, (std::vector<int>{-127, 64, 0}));
}

TEST(QuantizationTest, GroupsOfNothingAndOfNoNumber) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Quantization q : {Quantization::kInt8, Quantization::kInt4}) {
    EXPECT_EQ(Weights({0, -0.0f, 0x1p-101f}, q).scale, 0.0f);
    EXPECT_NE(Weights({0, 0x1p-100f}, q).scale, 0.0f);
    for (const float odd : {nan, infinity, -infinity}) {
      const Group group = Weights({1, odd, 2}, q);
      EXPECT_TRUE(std::isnan(group.scale));
      EXPECT_EQ(group.q, (std::vector<int>{0, 0, 0}));
    }
  }
  EXPECT_EQ(Activations({0, 0x1p-101f}).scale, 0.0f);
  EXPECT_TRUE(std::isnan(Activations({1, nan}).scale));
  EXPECT_TRUE(std::isnan(Activations({infinity, 1}).scale));
}

TEST(QuantizationTest, EveryInstructionSetQuantizesWeightsAlike) {
  Random random(3);
  for (const cpu::VectorKernels* kernels : KernelsUnderTest()) {
    for (int round = 0; round < 300; ++round) {
      const int count = 1 + random.Below(round % 2 == 0 ? 64 : 32);
      const std::vector<float> w = round % 3 == 0 ? random.Normals(count) : random.Wild(count);
      for (const Quantization quantization : {Quantization::kInt8, Quantization::kInt4}) {
        const Group want = Weights(w, quantization);
        std::vector<int8_t> q(w.size());
        const auto quantize = quantization == Quantization::kInt8
                                  ? kernels->quantized->quantize_int8
                                  : kernels->quantized->quantize_int4;
        const BF16 scale{quantize(w.data(), count, q.data())};
        ASSERT_EQ(ToFloat(scale), want.scale) << kernels->name;
        ASSERT_EQ(std::vector<int>(q.begin(), q.end()), want.q) << kernels->name;
      }
    }
  }
}

TEST(QuantizationTest, NamesGoBothWays) {
  for (const Quantization q : {Quantization::kNone, Quantization::kInt8, Quantization::kInt4}) {
    EXPECT_EQ(QuantizationOf(QuantizationName(q)), q);
  }
  EXPECT_EQ(QuantizationOf("int3"), std::nullopt);
}

TEST(QuantizationTest, BytesCountScales) {
  EXPECT_EQ(QuantizedBytes(Quantization::kInt8, 10, 128, 2), 10 * 2 * (128 + 2 * 2));
  EXPECT_EQ(QuantizedBytes(Quantization::kInt4, 10, 43, 4), 10 * 4 * (22 + 2 * 2));
}

}  // namespace
}  // namespace lockstep::testing
