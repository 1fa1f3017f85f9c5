// Linear against its twin, bit for bit, over sizes around every edge of tiles, panels, blocks and
// slices.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/kernels/kernel_fixture.h"

namespace lockstep::testing {
namespace {

struct Case {
  int64_t out_features;
  int64_t in_features;
  int num_k_slices;
  DType dtype;
};

std::unique_ptr<LinearWeight> MakeWeight(Backend& backend, const Case& c,
                                         const std::vector<float>& w) {
  auto weight = backend.AllocateLinear({c.out_features, c.in_features, c.dtype, c.num_k_slices});
  EXPECT_TRUE(weight.ok()) << weight.status();
  backend.FillLinear(**weight, 0, {w.data(), DType::kF32, c.out_features, c.in_features * 4});
  return *std::move(weight);
}

std::vector<float> Multiply(Backend& backend, const LinearWeight& weight,
                            const std::vector<float>& x, int64_t num_tokens) {
  Padded in(x);
  Padded out(num_tokens * weight.shape().out_features);
  backend.Linear(weight, in.data(), num_tokens, out.data());
  out.ExpectEdgesUntouched();
  return out.values();
}

class LinearTest : public KernelTest {
 protected:
  // The first rows of x for each count.
  void ExpectTwin(const Case& c, const std::vector<int64_t>& token_counts, uint32_t seed) {
    const int64_t most = *std::ranges::max_element(token_counts);
    const std::string name = absl::StrFormat("%s N=%d K=%d slices=%d seed=%d", DTypeName(c.dtype),
                                             c.out_features, c.in_features, c.num_k_slices, seed);
    Random random(seed);
    const std::vector<float> w = random.Wild(c.out_features * c.in_features);
    const std::vector<float> x = random.Wild(most * c.in_features);
    const std::vector<float>& all = OncePerCase(absl::StrCat(name, " M=", most), [&] {
      return Multiply(*reference_, *MakeWeight(*reference_, c, w), x, most);
    });
    const auto body = Body();
    const auto packed = MakeWeight(*body, c, w);
    for (const int64_t num_tokens : token_counts) {
      const std::vector<float> rows(x.begin(), x.begin() + num_tokens * c.in_features);
      const std::vector<float> want(all.begin(), all.begin() + num_tokens * c.out_features);
      ASSERT_TRUE(SameBits(Multiply(*body, *packed, rows, num_tokens), want))
          << name << " M=" << num_tokens;
    }
  }
};

TEST_P(LinearTest, EqualsTwinOverOddSizes) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t n : {1, 3, 7, 31, 32, 33, 65}) {
      for (const int64_t k : {1, 2, 3, 7, 15, 16, 17, 33, 64}) {
        ExpectTwin({n, k, 1, dtype}, {1, 2, 3, 5, 6, 7}, static_cast<uint32_t>(n * 100 + k));
      }
    }
  }
}

TEST_P(LinearTest, EqualsTwinOverRowCounts) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    ExpectTwin({40, 37, 1, dtype},
               {4, 8, 11, 12, 13, 16, 17, 24, 25, 47, 48, 49, 95, 96, 97, 193, 257, 513, 1030}, 1);
  }
}

TEST_P(LinearTest, EqualsTwinAcrossBlocksOfK) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t k : {255, 256, 257, 511, 513, 1030}) {
      ExpectTwin({33, k, 1, dtype}, {1, 4, 13}, static_cast<uint32_t>(k));
    }
  }
}

TEST_P(LinearTest, EqualsTwinForEveryNumberOfSlices) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int slices : {2, 3, 4, 5, 6, 7, 8, 16}) {
      for (const int64_t slice_k : {1, 3, 10, 259}) {
        ExpectTwin({35, slices * slice_k, slices, dtype}, {1, 7, 30},
                   static_cast<uint32_t>(slices));
      }
    }
  }
}

TEST_P(LinearTest, RowsDoNotDependOnTheirBatch) {
  const Case c = {67, 130, 2, DType::kBF16};
  Random random(7);
  const auto body = Body();
  const auto weight = MakeWeight(*body, c, random.Normals(c.out_features * c.in_features));
  const std::vector<float> x = random.Normals(70 * c.in_features);
  const std::vector<float> all = Multiply(*body, *weight, x, 70);
  for (int64_t num_tokens = 1; num_tokens < 70; ++num_tokens) {
    const std::vector<float> some(x.begin(), x.begin() + num_tokens * c.in_features);
    const std::vector<float> want(all.begin(), all.begin() + num_tokens * c.out_features);
    ASSERT_TRUE(SameBits(Multiply(*body, *weight, some, num_tokens), want))
        << num_tokens << " rows";
  }
  const std::vector<float> last(x.end() - c.in_features, x.end());
  EXPECT_TRUE(SameBits(Multiply(*body, *weight, last, 1), {all.end() - c.out_features, all.end()}));
}

TEST_P(LinearTest, BitsDoNotDependOnThreads) {
  const Case c = {300, 96, 4, DType::kBF16};
  Random random(8);
  const std::vector<float> w = random.Normals(c.out_features * c.in_features);
  for (const int64_t num_tokens : {1, 5, 130}) {
    const std::vector<float> x = random.Normals(num_tokens * c.in_features);
    const auto alone = Body(1);
    const std::vector<float> want = Multiply(*alone, *MakeWeight(*alone, c, w), x, num_tokens);
    for (const int num_threads : {2, 3, 7}) {
      const auto body = Body(num_threads);
      EXPECT_TRUE(SameBits(Multiply(*body, *MakeWeight(*body, c, w), x, num_tokens), want))
          << num_threads;
    }
  }
}

// Ranks own neighbouring slices; what they compute apart, added as a tree of neighbours, is what
// one computes alone.
TEST_P(LinearTest, RanksAddUpToOneCall) {
  constexpr int64_t kTokens = 5;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t slice_k : {6, 7}) {
      const Case whole = {45, 8 * slice_k, 8, dtype};
      Random random(9);
      const std::vector<float> w = random.Wild(whole.out_features * whole.in_features);
      const std::vector<float> x = random.Wild(kTokens * whole.in_features);
      const auto body = Body();
      const std::vector<float> want = Multiply(*body, *MakeWeight(*body, whole, w), x, kTokens);
      for (const int tp : {2, 4, 8}) {
        std::vector<std::vector<float>> partial;
        const int64_t own = whole.in_features / tp;
        for (int rank = 0; rank < tp; ++rank) {
          auto weight = body->AllocateLinear({whole.out_features, own, dtype, 8 / tp});
          ASSERT_TRUE(weight.ok());
          body->FillLinear(
              **weight, 0,
              {w.data() + rank * own, DType::kF32, whole.out_features, whole.in_features * 4});
          std::vector<float> rows;
          for (int64_t t = 0; t < kTokens; ++t) {
            const auto row = x.begin() + t * whole.in_features + rank * own;
            rows.insert(rows.end(), row, row + own);
          }
          partial.push_back(Multiply(*body, **weight, rows, kTokens));
        }
        for (int step = 1; step < tp; step *= 2) {
          for (int rank = 0; rank < tp; rank += 2 * step) {
            body->Add(partial[rank].data(), partial[rank + step].data(), DType::kF32,
                      static_cast<int64_t>(want.size()));
          }
        }
        EXPECT_TRUE(SameBits(partial[0], want)) << DTypeName(dtype) << " tp " << tp;
      }
    }
  }
}

TEST_P(LinearTest, FillConvertsEveryDTypeAndAnyRowRange) {
  constexpr int64_t kN = 70;
  constexpr int64_t kK = 9;
  Random random(10);
  std::vector<uint16_t> bits(kN * kK);
  for (uint16_t& b : bits)
    b = static_cast<uint16_t>(random.Below(0x3c00) | (random.Below(2) << 15));
  const std::vector<float> x = random.Normals(2 * kK);
  const auto body = Body();
  for (const DType from : {DType::kF16, DType::kBF16}) {
    for (const DType to : {DType::kF32, DType::kBF16}) {
      const LinearShape shape = {kN, kK, to, 1};
      const auto plain = *reference_->AllocateLinear(shape);
      reference_->FillLinear(*plain, 0, {bits.data(), from, kN, kK * 2});
      const auto packed = *body->AllocateLinear(shape);
      for (int64_t row = 0; row < kN; row += 13) {
        const int64_t count = std::min<int64_t>(13, kN - row);
        body->FillLinear(*packed, row, {bits.data() + row * kK, from, count, kK * 2});
      }
      EXPECT_TRUE(SameBits(Multiply(*body, *packed, x, 2), Multiply(*reference_, *plain, x, 2)))
          << DTypeName(from) << " to " << DTypeName(to);
    }
  }
}

TEST_P(LinearTest, NonFiniteWeightsStayInTheirColumn) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Case c = {34, 5, 1, dtype};
    Random random(11);
    std::vector<float> w = random.Normals(c.out_features * c.in_features);
    w[33 * c.in_features] = std::numeric_limits<float>::infinity();
    w[3 * c.in_features] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> x = random.Normals(3 * c.in_features);
    const auto body = Body();
    EXPECT_TRUE(SameBits(Multiply(*body, *MakeWeight(*body, c, w), x, 3),
                         Multiply(*reference_, *MakeWeight(*reference_, c, w), x, 3)));
  }
}

TEST_P(LinearTest, BadShapesAreRefusedByName) {
  const auto body = Body();
  const auto message = [&](const LinearShape& shape) {
    const auto weight = body->AllocateLinear(shape);
    EXPECT_EQ(weight.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(weight.status().message());
  };
  EXPECT_NE(message({0, 8, DType::kF32, 1}).find("out_features is 0"), std::string::npos);
  EXPECT_NE(message({8, -1, DType::kF32, 1}).find("in_features is -1"), std::string::npos);
  EXPECT_NE(message({8, 8, DType::kF32, 0}).find("num_k_slices is 0"), std::string::npos);
  EXPECT_NE(message({8, 8, DType::kF32, 3}).find("cannot be cut into 3"), std::string::npos);
  EXPECT_NE(message({8, 8, DType::kF16, 1}).find("dtype f16"), std::string::npos);
}

TEST_P(LinearTest, MoreThanAllMemoryIsResourceExhausted) {
  const auto weight = Body()->AllocateLinear({int64_t{1} << 31, int64_t{1} << 31, DType::kF32, 1});
  EXPECT_EQ(weight.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_P(LinearTest, NoTokensIsNoWork) {
  const Case c = {8, 8, 1, DType::kF32};
  const auto body = Body();
  EXPECT_TRUE(Multiply(*body, *MakeWeight(*body, c, std::vector<float>(64, 1.0f)), {}, 0).empty());
}

INSTANTIATE_TEST_SUITE_P(Isa, LinearTest, ::testing::ValuesIn(FloatKernelsUnderTest()),
                         KernelsName);

}  // namespace
}  // namespace lockstep::testing
