// Products of rows that were quantized for them, by one backend: the bits of products that quantize
// what they read themselves, whoever writes the rows and wherever they come from.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/fp8_devices.h"
#include "tests/kernels/kernel_fixture.h"
#ifdef LOCKSTEP_CUDA_EMULATION
#include "tests/support/cuda_emulation/emulation.h"
#endif

namespace lockstep::testing {
namespace {

constexpr DType kProductTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// A norm and its product, a gated row and its product, by one backend.
class FusedProduct {
 public:
  static constexpr int64_t kHidden = 96, kWidth = 176, kMostRows = 260;
  // Which many rows' largest numbers are beyond, not all.
  static constexpr float kUpBound = 4.0f, kDownBound = 400.0f;

  explicit FusedProduct(DType compute, bool deterministic) {
    auto backend = cuda::CudaBackend::Create({.compute = compute, .deterministic = deterministic});
    EXPECT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
    Random random(5);
    up_ = Weight(random, 2 * kWidth, kHidden, kUpBound);
    down_ = Weight(random, kHidden, kWidth, kDownBound);
    residual_.Write(random.Normals(kMostRows * kHidden));
    norm_.Write(random.Normals(kHidden));
    in_ = *backend_->Allocate(kMostRows * kWidth * DTypeBytes(compute));
    plain_ = *backend_->Allocate(kMostRows * kHidden * DTypeBytes(compute));
    std::vector<int32_t> ids(kMostRows);
    std::iota(ids.begin(), ids.end(), 0);
    ids_.Write(ids);
  }

  cuda::CudaBackend& backend() { return *backend_; }
  const LinearWeight& up() const { return *up_; }
  const LinearWeight& down() const { return *down_; }

  void Norm(int64_t rows, const LinearWeight* consumer) {
    backend_->AddRmsNorm(
        {residual_.data(), nullptr, norm_.data(), 1e-5f, rows, kHidden, in_.data(), consumer});
  }
  // As ranks do that have the others' rows brought to them: part by part, each to where it belongs.
  void NormInShares(int64_t rows, int64_t share) {
    const int64_t room = (rows + share - 1) / share * share;
    for (int64_t first = 0; first < rows; first += share) {
      backend_->AddRmsNorm({residual_.data() + first * kHidden, nullptr, norm_.data(), 1e-5f,
                            std::min(share, rows - first), kHidden, in_.data(), up_.get(), room,
                            first});
    }
  }
  std::array<RowArray, 2> RowsToGather() const {
    return backend_->RowsToGather(in_.data(), kHidden);
  }
  void* rows() const { return in_.data(); }
  // The norm's product alone, of shares; 0: of all at once, without its reader's name.
  std::vector<float> Up(int64_t rows, int64_t share) {
    return OutputOf([&] {
      share > 0 ? NormInShares(rows, share) : Norm(rows, nullptr);
      Multiply(*up_, rows);
    });
  }
  // The norm's product of rows that were brought to where quantized ones waited for it.
  std::vector<float> UpOfGathered(int64_t rows) {
    const int64_t row_bytes = kHidden * DTypeBytes(backend_->LinearInput());
    return OutputOf([&] {
      Norm(rows, nullptr);
      backend_->GatherRows(in_.data(), ids_.data(), rows, row_bytes, plain_.data());
      Norm(rows, up_.get());
      backend_->GatherRows(plain_.data(), ids_.data(), rows, row_bytes, in_.data());
      Multiply(*up_, rows);
    });
  }
  // Once for so many rows.
  void MakeGateUp(int64_t rows) {
    if (std::exchange(gate_up_rows_, rows) == rows) return;
    Norm(rows, nullptr);
    backend_->RoundedLinear(*up_, in_.data(), rows, gate_up_.data());
  }
  void Gate(int64_t rows, const LinearWeight* consumer) {
    MakeGateUp(rows);
    backend_->SiluMul(
        {gate_up_.data(), rows, kWidth, in_.data(), consumer, backend_->ProductDType(rows)});
  }
  void Multiply(const LinearWeight& weight, int64_t rows) {
    backend_->Linear(weight, in_.data(), rows, y_.data());
  }
  // Both products' outputs, one after the other.
  std::vector<float> Both(int64_t rows, bool with_consumers) {
    std::vector<float> all;
    for (const bool is_up : {true, false}) {
      const LinearWeight& weight = is_up ? *up_ : *down_;
      const LinearWeight* const consumer = with_consumers ? &weight : nullptr;
      const std::vector<float> y = OutputOf([&] {
        is_up ? Norm(rows, consumer) : Gate(rows, consumer);
        Multiply(weight, rows);
      });
      all.insert(all.end(), y.begin(), y.end());
    }
    return all;
  }
  // The norm's product alone, as a step that repeats.
  std::vector<float> RepeatedUp(int64_t rows) {
    return OutputOf([&] {
      const absl::Status status = backend_->Repeat(1, [&] {
        Norm(rows, up_.get());
        Multiply(*up_, rows);
        return absl::OkStatus();
      });
      EXPECT_TRUE(status.ok()) << status;
    });
  }

 private:
  // What work() leaves in y_, NaN where it writes nothing.
  template <typename Work>
  std::vector<float> OutputOf(const Work& work) {
    y_.Write(std::vector<float>(kMostRows * 2 * kWidth, NAN));
    work();
    backend_->Synchronize();
    return y_.Read();
  }
  std::unique_ptr<LinearWeight> Weight(Random& random, int64_t out, int64_t in, float bound) {
    auto weight = Fp8Weight(
        *backend_, {.out_features = out, .in_features = in, .activation_bound = bound}, kMostRows);
    const std::vector<float> rows = random.Normals(out * in);
    backend_->FillLinear(*weight, 0, {rows.data(), DType::kF32, out, in * 4});
    return weight;
  }

  std::unique_ptr<cuda::CudaBackend> backend_;
  std::unique_ptr<LinearWeight> up_, down_;
  DeviceArray<float> residual_{kMostRows * kHidden}, norm_{kHidden};
  DeviceBuffer plain_;
  DeviceArray<int32_t> ids_{kMostRows};
  int64_t gate_up_rows_ = 0;
  DeviceArray<float> gate_up_{kMostRows * 2 * kWidth}, y_{kMostRows * 2 * kWidth};
  DeviceBuffer in_;
};

class FusedProductTest : public ::testing::TestWithParam<std::tuple<DType, bool>> {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_FP8();
    product_.emplace(std::get<0>(GetParam()), std::get<1>(GetParam()));
  }
  std::optional<FusedProduct> product_;
};

// Sizes that are new, too: whatever is measured then is measured once.
TEST_P(FusedProductTest, NamingItsReaderChangesNoBit) {
  for (const int64_t rows : {1, 2, 17, 64, 70}) {
    const std::vector<float> first = product_->Both(rows, /*with_consumers=*/true);
    const std::vector<float> want = product_->Both(rows, /*with_consumers=*/false);
    ASSERT_TRUE(SameBits(first, want)) << rows;
    ASSERT_TRUE(SameBits(product_->Both(rows, /*with_consumers=*/true), want)) << rows;
  }
}

TEST_P(FusedProductTest, RecordedToo) {
  for (const int64_t rows : {40, 70}) {
    const std::vector<float> want = product_->RepeatedUp(rows);
    for (int time = 0; time < 3; ++time) {
      ASSERT_TRUE(SameBits(product_->RepeatedUp(rows), want)) << rows;
    }
  }
}

TEST_P(FusedProductTest, GatheredSharesChangeNoBit) {
  for (const int64_t rows : {1, 5, 16, 17, 64, 65, 99}) {
    const std::vector<float> want = product_->Up(rows, 0);
    for (const int64_t share : {(rows + 1) / 2, (rows + 2) / 3, rows}) {
      ASSERT_TRUE(SameBits(product_->Up(rows, share), want)) << rows << " by " << share;
    }
  }
}

TEST_P(FusedProductTest, SharesLieWhereEveryRankExpectsThem) {
  const DType compute = std::get<0>(GetParam());
  constexpr int64_t kRows = 99;
  product_->NormInShares(kRows, kRows / 3);
  auto* const rows = static_cast<std::byte*>(product_->rows());
  const auto quantized = product_->RowsToGather();
  EXPECT_EQ(quantized[0].data, rows);
  EXPECT_EQ(quantized[0].row_bytes, FusedProduct::kHidden);
  EXPECT_EQ(quantized[1].data, rows + kRows * FusedProduct::kHidden);
  EXPECT_EQ(quantized[1].row_bytes, 4);
  product_->Multiply(product_->up(), kRows);
  // Few rows are multiplied as each rank finds best, so all gather them as they are.
  product_->NormInShares(64, 32);
  const auto plain = product_->RowsToGather();
  EXPECT_EQ(plain[0].data, rows);
  EXPECT_EQ(plain[0].row_bytes, FusedProduct::kHidden * DTypeBytes(compute));
  EXPECT_EQ(plain[1].row_bytes, 0);
}

// Who writes again before the product has read, in the same place, is read.
TEST_P(FusedProductTest, TheLastWriterCounts) {
  constexpr int64_t kRows = 70;
  const std::vector<float> want = product_->Both(kRows, /*with_consumers=*/false);
  product_->Both(kRows, /*with_consumers=*/true);
  product_->Norm(kRows, &product_->up());
  ASSERT_TRUE(SameBits(product_->Both(kRows, /*with_consumers=*/false), want));
  product_->Norm(kRows, &product_->up());
  ASSERT_TRUE(SameBits(product_->Both(kRows, /*with_consumers=*/true), want));
  ASSERT_TRUE(SameBits(product_->UpOfGathered(kRows), product_->Up(kRows, 0)));
}

// Where nothing is lost that f32 would keep for anybody: not in f16, whose range ends, nor in steps
// whose bits do not depend on their length.
TEST(RoundedProductsTest, AreRoundedInLongerStepsOfBf16) {
  SKIP_WITHOUT_FP8();
  for (const DType dtype : kProductTypes) {
    for (const bool deterministic : {false, true}) {
      FusedProduct product(dtype, deterministic);
      const bool is_rounded = dtype == DType::kBF16 && !deterministic;
      EXPECT_EQ(product.backend().ProductDType(256), DType::kF32);
      EXPECT_EQ(product.backend().ProductDType(257), is_rounded ? DType::kBF16 : DType::kF32);
    }
  }
}

TEST(RoundedProductsTest, AreNearThoseInF32) {
  SKIP_WITHOUT_FP8();
  FusedProduct rounded(DType::kBF16, /*deterministic=*/false);
  FusedProduct plain(DType::kBF16, /*deterministic=*/true);
  const std::vector<float> got = rounded.Both(260, /*with_consumers=*/true);
  const std::vector<float> want = plain.Both(260, /*with_consumers=*/true);
  ASSERT_EQ(got.size(), want.size());
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(want[i])) continue;  // beyond the second product's outputs
    error += std::pow(got[i] - want[i], 2);
    size += std::pow(want[i], 2);
  }
  EXPECT_LT(std::sqrt(error / size), 0.02);
  EXPECT_GT(error, 0.0) << "nothing was rounded";
}

INSTANTIATE_TEST_SUITE_P(Numbers, FusedProductTest,
                         ::testing::Combine(::testing::ValuesIn(kProductTypes), ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(DTypeName(std::get<0>(info.param))) +
                                  (std::get<1>(info.param) ? "Deterministic" : "");
                         });

#ifdef LOCKSTEP_CUDA_EMULATION
// Kernels of both products, whose algorithms are known.
int64_t NumKernels(FusedProduct& product, int64_t rows, bool with_consumers) {
  product.Both(rows, with_consumers);
  const int64_t before = cuda_emulation::NumKernelsRun();
  product.Both(rows, with_consumers);
  return cuda_emulation::NumKernelsRun() - before;
}

TEST(FusedProductKernelsTest, NoneIsLaunchedToQuantizeAlone) {
  for (const bool deterministic : {false, true}) {
    FusedProduct product(DType::kBF16, deterministic);
    EXPECT_EQ(NumKernels(product, 33, /*with_consumers=*/false), 4);
    EXPECT_EQ(NumKernels(product, 33, /*with_consumers=*/true), 2);
  }
}

// Our own kernels for few rows multiply x as it is, where they are faster.
TEST(FusedProductKernelsTest, WhoMultipliesPlainRowsGetsThem) {
  cuda_emulation::SetDevice({.product_seconds = 0.05});
  {
    FusedProduct product(DType::kBF16, /*deterministic=*/false);
    const std::vector<float> want = product.Both(8, /*with_consumers=*/false);
    EXPECT_EQ(NumKernels(product, 8, /*with_consumers=*/true), 4);
    EXPECT_TRUE(SameBits(product.Both(8, /*with_consumers=*/true), want));
  }
  cuda_emulation::SetDevice({});
}

// A group that ends while it gathers ends the step before the product.
TEST(FusedProductKernelsTest, RowsOfAStepThatEndedAreForgottenWithTheSteps) {
  FusedProduct product(DType::kBF16, /*deterministic=*/false);
  const std::vector<float> want = product.RepeatedUp(40);
  product.NormInShares(33, 11);
  product.backend().ForgetSteps();
  EXPECT_TRUE(SameBits(product.RepeatedUp(40), want));
}

class FusedProductDeathTest : public ::testing::Test {
 protected:
  FusedProductDeathTest() {
    ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
    product_.Both(33, /*with_consumers=*/true);  // its sizes are known from now on
  }
  FusedProduct product_{DType::kBF16, /*deterministic=*/false};
};

TEST_F(FusedProductDeathTest, NobodyElseReadsWhatIsQuantizedForAProduct) {
  product_.Norm(33, &product_.up());
  EXPECT_DEATH(product_.Multiply(product_.down(), 33), "quantized for another one");
  EXPECT_DEATH(product_.Multiply(product_.up(), 32), "quantized for another one");
  EXPECT_DEATH(product_.Gate(33, &product_.up()), "CHECK failed");
  product_.Multiply(product_.up(), 33);
  EXPECT_DEATH(product_.Multiply(product_.up(), 33), "read twice");
  product_.Norm(33, nullptr);
  for (int time = 0; time < 2; ++time) product_.Multiply(product_.up(), 33);
}

TEST_F(FusedProductDeathTest, StepsReadWhatTheyQuantize) {
  const auto nothing = [] { return absl::OkStatus(); };
  const auto norm = [&] {
    product_.Norm(33, &product_.up());
    return absl::OkStatus();
  };
  EXPECT_DEATH(product_.backend().Repeat(1, norm).IgnoreError(), "after it");
  product_.Norm(33, &product_.up());
  EXPECT_DEATH(product_.backend().Repeat(1, nothing).IgnoreError(), "before a step");
}
#endif

}  // namespace
}  // namespace lockstep::testing
