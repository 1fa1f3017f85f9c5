// Linear with weights of 8 and 4 bits against its twin, bit for bit, over sizes around every edge
// of groups, steps, tiles, panels and slices.
#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/cpu/quantized_check.h"
#include "kernels/quantization.h"
#include "tests/kernels/kernel_fixture.h"

namespace lockstep::testing {
namespace {

constexpr Quantization kBoth[] = {Quantization::kInt8, Quantization::kInt4};

LinearShape QuantizedShape(int64_t n, int64_t k, int slices, Quantization quantization) {
  return {
      .out_features = n, .in_features = k, .num_k_slices = slices, .quantization = quantization};
}

std::unique_ptr<LinearWeight> MakeWeight(Backend& backend, const LinearShape& shape,
                                         const std::vector<float>& w) {
  auto weight = backend.AllocateLinear(shape);
  EXPECT_TRUE(weight.ok()) << weight.status();
  backend.FillLinear(**weight, 0,
                     {w.data(), DType::kF32, shape.out_features, shape.in_features * 4});
  return *std::move(weight);
}

std::vector<float> QuantizedMultiply(Backend& backend, const LinearWeight& weight,
                                     const std::vector<float>& x, int64_t num_tokens) {
  Padded in(x);
  Padded out(num_tokens * weight.shape().out_features);
  backend.Linear(weight, in.data(), num_tokens, out.data());
  out.ExpectEdgesUntouched();
  return out.values();
}

class QuantizedLinearTest : public KernelTest {
 protected:
  void ExpectTwin(const LinearShape& shape, const std::vector<int64_t>& token_counts,
                  const std::vector<float>& w, const std::vector<float>& x) {
    const auto body = Body();
    const auto plain = MakeWeight(*reference_, shape, w);
    const auto packed = MakeWeight(*body, shape, w);
    const int64_t most = *std::ranges::max_element(token_counts);
    const std::vector<float> all = QuantizedMultiply(*reference_, *plain, x, most);
    for (const int64_t num_tokens : token_counts) {
      const std::vector<float> rows(x.begin(), x.begin() + num_tokens * shape.in_features);
      const std::vector<float> want(all.begin(), all.begin() + num_tokens * shape.out_features);
      ASSERT_TRUE(SameBits(QuantizedMultiply(*body, *packed, rows, num_tokens), want))
          << QuantizationName(shape.quantization) << " N=" << shape.out_features
          << " K=" << shape.in_features << " slices=" << shape.num_k_slices << " M=" << num_tokens;
    }
  }
  void ExpectTwin(const LinearShape& shape, const std::vector<int64_t>& token_counts,
                  uint32_t seed) {
    Random random(seed);
    const int64_t most = *std::max_element(token_counts.begin(), token_counts.end());
    const std::vector<float> w = random.Wild(shape.out_features * shape.in_features);
    ExpectTwin(shape, token_counts, w, random.Wild(most * shape.in_features));
  }
};

TEST_P(QuantizedLinearTest, EqualsTwinOverOddSizes) {
  for (const Quantization q : kBoth) {
    for (const int64_t n : {1, 31, 32, 33, 65}) {
      for (const int64_t k : {1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 100, 127, 129}) {
        ExpectTwin(QuantizedShape(n, k, 1, q), {1, 2, 5}, static_cast<uint32_t>(n * 1000 + k));
      }
    }
  }
}

TEST_P(QuantizedLinearTest, EqualsTwinOverRowCounts) {
  std::vector<int64_t> counts;
  for (int64_t m = 1; m <= 70; ++m) counts.push_back(m);
  counts.insert(counts.end(), {95, 96, 97, 193});
  for (const Quantization q : kBoth) ExpectTwin(QuantizedShape(40, 75, 1, q), counts, 1);
}

TEST_P(QuantizedLinearTest, EqualsTwinAcrossBlocksOfK) {
  for (const Quantization q : kBoth) {
    for (const int64_t k : {255, 256, 257, 512, 520, 1030}) {
      ExpectTwin(QuantizedShape(200, k, 1, q), {1, 4, 13, 30}, static_cast<uint32_t>(k));
    }
  }
}

TEST_P(QuantizedLinearTest, EqualsTwinForEveryNumberOfSlices) {
  for (const Quantization q : kBoth) {
    for (const int slices : {2, 3, 4, 5, 7, 8, 16}) {
      for (const int64_t slice_k : {1, 8, 43, 64, 259}) {
        ExpectTwin(QuantizedShape(35, slices * slice_k, slices, q), {1, 7, 14},
                   static_cast<uint32_t>(slices));
      }
    }
  }
}

// All weights and activations at the ends of their ranges: where sums of products are largest.
TEST_P(QuantizedLinearTest, NothingSaturates) {
  for (const Quantization q : kBoth) {
    for (const float sign : {1.0f, -1.0f}) {
      const LinearShape shape = QuantizedShape(33, 192, 1, q);
      const std::vector<float> w(static_cast<size_t>(33 * 192), sign);
      std::vector<float> x(14 * 192, 1.0f);
      std::fill(x.begin() + 192, x.begin() + 384, -1.0f);
      ExpectTwin(shape, {1, 2, 14}, w, x);
    }
  }
}

TEST_P(QuantizedLinearTest, ExtremeNumbersAreAsTheContractSays) {
  constexpr float kMax = std::numeric_limits<float>::max();
  constexpr float kTiny = std::numeric_limits<float>::denorm_min();
  for (const Quantization q : kBoth) {
    const LinearShape shape = QuantizedShape(34, 130, 1, q);
    Random random(5);
    std::vector<float> w = random.Normals(34 * 130);
    std::vector<float> x = random.Normals(16 * 130);
    const float extremes[] = {kMax, -kMax, kTiny, 0x1p-100f, 0x0.fp-100f, 0x1p-126f, 0.0f};
    for (int i = 0; i < 7; ++i) {
      x[static_cast<size_t>(i * 130 + 3)] = extremes[i];
      w[static_cast<size_t>((i + 2) * 130 + 70)] = extremes[i];
      // A whole group of it.
      std::fill_n(x.begin() + (i + 7) * 130, 64, extremes[i]);
      std::fill_n(w.begin() + (i + 20) * 130, 64, extremes[i]);
    }
    ExpectTwin(shape, {16}, w, x);
  }
}

TEST_P(QuantizedLinearTest, NumbersThatAreNotFiniteStayInTheirRowAndColumn) {
  for (const Quantization q : kBoth) {
    const LinearShape shape = QuantizedShape(34, 70, 1, q);
    Random random(6);
    std::vector<float> w = random.Normals(34 * 70);
    std::vector<float> x = random.Normals(5 * 70);
    x[70 + 3] = std::numeric_limits<float>::quiet_NaN();
    x[3 * 70 + 69] = -std::numeric_limits<float>::infinity();
    w[33 * 70 + 1] = std::numeric_limits<float>::infinity();
    const auto body = Body();
    const std::vector<float> y = QuantizedMultiply(*body, *MakeWeight(*body, shape, w), x, 5);
    for (size_t t = 0; t < 5; ++t) {
      for (size_t n = 0; n < 34; ++n) {
        EXPECT_EQ(std::isnan(y[t * 34 + n]), t == 1 || t == 3 || n == 33) << t << " " << n;
      }
    }
    ExpectTwin(shape, {5}, w, x);
  }
}

TEST_P(QuantizedLinearTest, RowsDoNotDependOnTheirBatchNorOnThreads) {
  for (const Quantization q : kBoth) {
    const LinearShape shape = QuantizedShape(300, 130, 2, q);
    Random random(7);
    const std::vector<float> w = random.Normals(300 * 130);
    const std::vector<float> x = random.Normals(120 * 130);
    const auto body = Body();
    const auto weight = MakeWeight(*body, shape, w);
    const std::vector<float> all = QuantizedMultiply(*body, *weight, x, 120);
    for (int64_t first = 0; first < 120; first += 17) {
      const std::vector<float> some(x.begin() + first * 130, x.begin() + (first + 1) * 130);
      const std::vector<float> want(all.begin() + first * 300, all.begin() + (first + 1) * 300);
      ASSERT_TRUE(SameBits(QuantizedMultiply(*body, *weight, some, 1), want)) << first;
    }
    for (const int num_threads : {2, 7}) {
      const auto other = Body(num_threads);
      EXPECT_TRUE(SameBits(QuantizedMultiply(*other, *MakeWeight(*other, shape, w), x, 120), all));
    }
  }
}

// Ranks own neighbouring slices; what they compute apart, added as a tree of neighbours, is what
// one computes alone.
TEST_P(QuantizedLinearTest, RanksAddUpToOneCall) {
  constexpr int64_t kTokens = 5;
  for (const Quantization q : kBoth) {
    for (const int64_t slice_k : {43, 64, 96}) {
      const LinearShape whole = QuantizedShape(45, 8 * slice_k, 8, q);
      Random random(9);
      const std::vector<float> w = random.Normals(whole.out_features * whole.in_features);
      const std::vector<float> x = random.Normals(kTokens * whole.in_features);
      const auto body = Body();
      const std::vector<float> want =
          QuantizedMultiply(*body, *MakeWeight(*body, whole, w), x, kTokens);
      for (const int tp : {2, 4, 8}) {
        std::vector<std::vector<float>> partial;
        const int64_t own = whole.in_features / tp;
        for (int rank = 0; rank < tp; ++rank) {
          auto weight = body->AllocateLinear(QuantizedShape(whole.out_features, own, 8 / tp, q));
          ASSERT_TRUE(weight.ok());
          body->FillLinear(
              **weight, 0,
              {w.data() + rank * own, DType::kF32, whole.out_features, whole.in_features * 4});
          std::vector<float> rows;
          for (int64_t t = 0; t < kTokens; ++t) {
            const auto row = x.begin() + t * whole.in_features + rank * own;
            rows.insert(rows.end(), row, row + own);
          }
          partial.push_back(QuantizedMultiply(*body, **weight, rows, kTokens));
        }
        for (int step = 1; step < tp; step *= 2) {
          for (int rank = 0; rank < tp; rank += 2 * step) {
            body->Add(partial[rank].data(), partial[rank + step].data(), DType::kF32,
                      static_cast<int64_t>(want.size()));
          }
        }
        EXPECT_TRUE(SameBits(partial[0], want)) << QuantizationName(q) << " tp " << tp;
      }
    }
  }
}

TEST_P(QuantizedLinearTest, FillTakesEveryDTypeAndAnyRowRange) {
  constexpr int64_t kN = 70;
  constexpr int64_t kK = 75;
  Random random(10);
  std::vector<uint16_t> bits(kN * kK);
  for (uint16_t& b : bits)
    b = static_cast<uint16_t>(random.Below(0x3c00) | (random.Below(2) << 15));
  const std::vector<float> x = random.Normals(2 * kK);
  const auto body = Body();
  for (const DType from : {DType::kF16, DType::kBF16}) {
    for (const Quantization q : kBoth) {
      const LinearShape shape = QuantizedShape(kN, kK, 1, q);
      const auto plain = *reference_->AllocateLinear(shape);
      reference_->FillLinear(*plain, 0, {bits.data(), from, kN, kK * 2});
      const auto packed = *body->AllocateLinear(shape);
      for (int64_t row = 0; row < kN; row += 13) {
        const int64_t count = std::min<int64_t>(13, kN - row);
        body->FillLinear(*packed, row, {bits.data() + row * kK, from, count, kK * 2});
      }
      EXPECT_TRUE(SameBits(QuantizedMultiply(*body, *packed, x, 2),
                           QuantizedMultiply(*reference_, *plain, x, 2)))
          << DTypeName(from) << " to " << QuantizationName(q);
    }
  }
}

// As a file holds them.
struct StoredWeights {
  std::vector<uint8_t> values;
  std::vector<uint16_t> scales;
  int64_t value_bytes = 0;  // per row
  int64_t num_groups = 0;
};

StoredWeights Quantized(const LinearShape& shape, const std::vector<float>& w) {
  const QuantizedGroups groups{shape.in_features / shape.num_k_slices,
                               QuantizedGroup(shape.quantization)};
  StoredWeights stored;
  stored.num_groups = groups.per_slice() * shape.num_k_slices;
  stored.value_bytes = shape.in_features;
  stored.values.resize(static_cast<size_t>(shape.out_features * stored.value_bytes));
  for (int64_t n = 0; n < shape.out_features; ++n) {
    uint8_t* row = &stored.values[static_cast<size_t>(n * stored.value_bytes)];
    for (int64_t i = 0; i < stored.num_groups; ++i) {
      const int64_t first =
          i / groups.per_slice() * groups.slice_k + i % groups.per_slice() * groups.group;
      const int count = groups.size(i % groups.per_slice());
      int8_t q[kMaxQuantizedGroup];
      stored.scales.push_back(
          QuantizeWeightGroup(&w[static_cast<size_t>(n * shape.in_features + first)], count,
                              shape.quantization, q)
              .bits);
      for (int j = 0; j < count; ++j) {
        row[first + j] = static_cast<uint8_t>(q[j] + QuantizedZero(shape.quantization));
      }
    }
  }
  return stored;
}

TEST_P(QuantizedLinearTest, StoredWeightsGiveTheBitsOfTheirSource) {
  for (const Quantization q : kBoth) {
    for (const LinearShape& shape :
         {QuantizedShape(70, 128, 1, q), QuantizedShape(33, 4 * 43, 4, q)}) {
      Random random(12);
      const std::vector<float> w = random.Normals(shape.out_features * shape.in_features);
      const std::vector<float> x = random.Normals(3 * shape.in_features);
      const StoredWeights stored = Quantized(shape, w);
      const auto body = Body();
      for (Backend* backend : {body.get(), reference_.get()}) {
        auto weight = *backend->AllocateLinear(shape);
        const int64_t split = 11;
        for (const auto& [first, count] :
             {std::pair<int64_t, int64_t>{split, shape.out_features - split}, {0, split}}) {
          backend->FillLinear(*weight, first,
                              {stored.values.data() + first * stored.value_bytes, DType::kF32,
                               count, stored.value_bytes, RowContent::kQuantized});
          backend->FillLinear(*weight, first,
                              {stored.scales.data() + first * stored.num_groups, DType::kBF16,
                               count, stored.num_groups * 2, RowContent::kScales});
        }
        EXPECT_TRUE(SameBits(QuantizedMultiply(*backend, *weight, x, 3),
                             QuantizedMultiply(*body, *MakeWeight(*body, shape, w), x, 3)))
            << QuantizationName(q) << " K=" << shape.in_features;
      }
    }
  }
}

TEST_P(QuantizedLinearTest, ResultsAreNearTheExactOnes) {
  constexpr int64_t kK = 2048;
  Random random(13);
  const std::vector<float> w = random.Normals(32 * kK);
  const std::vector<float> x = random.Normals(kK);
  const auto body = Body();
  for (const auto& [q, bound] :
       {std::pair{Quantization::kInt8, 0.012}, {Quantization::kInt4, 0.12}}) {
    const std::vector<float> y =
        QuantizedMultiply(*body, *MakeWeight(*body, QuantizedShape(32, kK, 1, q), w), x, 1);
    double error = 0;
    for (int64_t n = 0; n < 32; ++n) {
      double exact = 0;
      for (int64_t k = 0; k < kK; ++k) exact += double{w[n * kK + k]} * x[k];
      error += (y[n] - exact) * (y[n] - exact);
    }
    // A dot product of independent normals has variance K.
    EXPECT_LT(std::sqrt(error / 32 / kK), bound) << QuantizationName(q);
  }
}

TEST_P(QuantizedLinearTest, BadShapesAreRefusedAndNoTokensAreNoWork) {
  const auto body = Body();
  EXPECT_EQ(body->AllocateLinear(QuantizedShape(8, 8, 3, Quantization::kInt8)).status().code(),
            absl::StatusCode::kInvalidArgument);
  const int64_t huge = int64_t{1} << 31;
  EXPECT_EQ(
      body->AllocateLinear(QuantizedShape(huge, huge, 1, Quantization::kInt4)).status().code(),
      absl::StatusCode::kResourceExhausted);
  const LinearShape shape = QuantizedShape(8, 8, 1, Quantization::kInt8);
  EXPECT_TRUE(
      QuantizedMultiply(*body, *MakeWeight(*body, shape, std::vector<float>(64, 1.0f)), {}, 0)
          .empty());
}

// Sums that are off by a bit where it matters least.
void SpoilLastElement(const cpu::QuantizedBlock& block) {
  cpu::kScalarQuantized.gemm_int4(block);
  float& last = block.c[block.num_rows * cpu::kQuantizedColumns - 1];
  last = std::nextafter(last, 0.0f);
}

TEST(QuantizedCheckTest, TablesOfTheSameArithmeticAgree) {
  for (const cpu::VectorKernels* kernels : KernelsUnderTest()) {
    EXPECT_TRUE(cpu::MultiplyAlike(*kernels->quantized, cpu::kScalarQuantized)) << kernels->name;
  }
  EXPECT_TRUE(cpu::MultiplyAlike(*kEmulatedAmxKernels.quantized, cpu::kScalarQuantized));
}

TEST(QuantizedCheckTest, OneBitOffIsSeen) {
  cpu::QuantizedKernels spoilt = cpu::kScalarQuantized;
  spoilt.gemm_int4 = SpoilLastElement;
  EXPECT_FALSE(cpu::MultiplyAlike(spoilt, cpu::kScalarQuantized));
}

// One table of those that share their quantized kernels, and emulated tiles.
std::vector<const cpu::VectorKernels*> QuantizedKernelsUnderTest() {
  std::vector<const cpu::VectorKernels*> tables;
  std::vector<const cpu::VectorKernels*> candidates = KernelsUnderTest();
  candidates.push_back(&kEmulatedAmxKernels);
  for (const cpu::VectorKernels* table : candidates) {
    const bool known = std::ranges::any_of(tables, [&](const cpu::VectorKernels* other) {
      return other->quantized == table->quantized;
    });
    if (!known) tables.push_back(table);
  }
  return tables;
}

INSTANTIATE_TEST_SUITE_P(Isa, QuantizedLinearTest, ::testing::ValuesIn(QuantizedKernelsUnderTest()),
                         KernelsName);

}  // namespace
}  // namespace lockstep::testing
