// Quantization to e4m3 and products of such rows, by the CUDA backend.
#include <cmath>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/fp8_devices.h"
#include "tests/kernels/kernel_fixture.h"
#ifdef LOCKSTEP_CUDA_EMULATION
#include "tests/support/cuda_emulation/emulation.h"
#endif

namespace lockstep::testing {
namespace {

struct Quantized {
  std::vector<uint8_t> q;
  std::vector<float> scales;
};

template <typename T>
Quantized Quantize(const std::vector<T>& x, DType dtype, int64_t num_rows,
                   float bound = kNoActivationBound) {
  const auto width = static_cast<int64_t>(x.size()) / num_rows;
  DeviceArray<T> input(x);
  DeviceArray<uint8_t> q(std::vector<uint8_t>(x.size(), 0xff));
  DeviceArray<float> scales(std::vector<float>(static_cast<size_t>(num_rows), NAN));
  const cuda::E4m3Rows out = {q.data(), scales.data()};
  EXPECT_EQ(
      cuda::LaunchQuantizeFp8(input.data(), dtype, num_rows, width, out.Bounded(bound), nullptr),
      cudaSuccess);
  return {q.Read(), scales.Read()};
}

TEST(QuantizeFp8Test, RoundsToTheNearestNumber) {
  Random random(1);
  // 20000: more than threads keep.
  for (const int64_t width : {1, 16, 61, 256, 1002, 4096, 20000}) {
    constexpr int64_t kRows = 3;
    const std::vector<float> x = random.Normals(kRows * width);
    const Quantized got = Quantize(x, DType::kF32, kRows);
    for (int64_t row = 0; row < kRows; ++row) {
      float largest = 0;
      for (int64_t i = 0; i < width; ++i) {
        largest = std::max(largest, std::abs(x[static_cast<size_t>(row * width + i)]));
      }
      const float scale = got.scales[static_cast<size_t>(row)];
      EXPECT_FLOAT_EQ(scale, largest / 448.0f);
      for (int64_t i = row * width; i < (row + 1) * width; ++i) {
        const float want = x[static_cast<size_t>(i)] / scale;
        // Half a unit in the last place: 2^-4 of the number, or 2^-10 below the normal ones.
        ASSERT_NEAR(E4m3(got.q[static_cast<size_t>(i)]), want,
                    std::max(std::abs(want) * 0x1.001p-4f, 0x1p-10f))
            << i;
      }
    }
  }
}

TEST(QuantizeFp8Test, NarrowRowsAreReadAsWhatTheyAre) {
  Random random(2);
  const std::vector<float> x = random.Normals(2 * 48);
  const auto expect_same = [](const auto& narrow, DType dtype) {
    const Quantized got = Quantize(narrow, dtype, 2);
    const Quantized want = Quantize(ToFloats(narrow), DType::kF32, 2);
    EXPECT_EQ(got.q, want.q);
    EXPECT_EQ(got.scales, want.scales);
  };
  expect_same(Narrowed<BF16>(x), DType::kBF16);
  expect_same(Narrowed<F16>(x), DType::kF16);
}

TEST(QuantizeFp8Test, ZerosAndWhatIsNotFiniteHaveScalesThatSaySo) {
  std::vector<float> x(4 * 16, 0.0f);
  x[16] = INFINITY;
  x[32] = NAN;
  x[48] = 1e-44f;
  const Quantized got = Quantize(x, DType::kF32, 4);
  EXPECT_EQ(got.q, std::vector<uint8_t>(x.size(), 0));
  EXPECT_EQ(got.scales[0], 0.0f);
  EXPECT_TRUE(std::isnan(got.scales[1]));
  EXPECT_TRUE(std::isnan(got.scales[2]));
  EXPECT_EQ(got.scales[3], 0.0f);
}

// In plain loops, of finite numbers that are not all as small as nothing.
Quantized PlainlyQuantized(const std::vector<float>& x, int64_t num_rows, float bound) {
  Quantized plain;
  const int64_t width = std::ssize(x) / num_rows;
  for (auto row = x.begin(); row != x.end(); row += width) {
    float largest = 0;
    for (auto i = row; i != row + width; ++i) largest = std::max(largest, std::abs(*i));
    const float scale = std::min(largest, bound) / 448.0f;
    plain.scales.push_back(scale);
    const float inverse = 1.0f / scale;
    for (auto i = row; i != row + width; ++i) plain.q.push_back(ToE4m3(*i * inverse));
  }
  return plain;
}

std::vector<float> Clamped(std::vector<float> x, float bound) {
  for (float& number : x) number = std::clamp(number, -bound, bound);
  return x;
}

// Rows one after another: below the bound, some numbers beyond it, one far beyond it, all of them.
TEST(QuantizeFp8Test, WhatIsBeyondABoundSaturates) {
  Random random(7);
  constexpr int64_t kRows = 4;
  constexpr float kBound = 2.5f;
  for (const int64_t width : {1, 61, 1002, 4096, 20000}) {
    std::vector<float> x = random.Normals(kRows * width);
    for (int64_t i = 0; i < width; ++i) {
      x[static_cast<size_t>(i)] *= 0.1f;
      x[static_cast<size_t>(3 * width + i)] *= 1e10f;
    }
    x[static_cast<size_t>(2 * width + width / 2)] = -3e38f;
    const auto expect = [&](const auto& narrow, DType dtype) {
      const std::vector<float> numbers = RoundedTo(dtype, x);
      const Quantized got = Quantize(narrow, dtype, kRows, kBound);
      const Quantized want = PlainlyQuantized(numbers, kRows, kBound);
      EXPECT_EQ(got.scales, want.scales) << width;
      EXPECT_TRUE(got.q == want.q) << width << " in " << DTypeName(dtype);
      // Which is what numbers that are bounded themselves become.
      const Quantized clamped = Quantize(Clamped(numbers, kBound), DType::kF32, kRows);
      EXPECT_EQ(got.scales, clamped.scales) << width;
      EXPECT_TRUE(got.q == clamped.q) << width << " in " << DTypeName(dtype);
    };
    expect(x, DType::kF32);
    expect(Narrowed<BF16>(x), DType::kBF16);
    for (float& number : x) number = std::clamp(number, -60000.0f, 60000.0f);
    expect(Narrowed<F16>(x), DType::kF16);
  }
}

// As FBGEMM has it: its maximum bounds infinities, its conversion saturates.
TEST(QuantizeFp8Test, InfinitiesAreBeyondABoundAndNanIsNoNumber) {
  std::vector<float> x(4 * 16, 0.0f);
  x[0] = 2.0f;
  x[16] = INFINITY;
  x[17] = -INFINITY;
  x[18] = -2.0f;
  x[32] = NAN;
  x[33] = INFINITY;
  const Quantized got = Quantize(x, DType::kF32, 4, 4.0f);
  EXPECT_EQ(got.scales[0], 2.0f / 448.0f);
  EXPECT_EQ(got.scales[1], 4.0f / 448.0f);
  EXPECT_TRUE(std::isnan(got.scales[2]));
  EXPECT_EQ(got.scales[3], 0.0f);
  std::vector<uint8_t> want(x.size(), 0);
  want[0] = want[16] = ToE4m3(448.0f);
  want[17] = ToE4m3(-448.0f);
  want[18] = ToE4m3(-224.0f);
  EXPECT_EQ(got.q, want);
}

constexpr int64_t kBehind = 8;
template <typename T, typename Widen>
void ExpectScaled(const std::vector<T>& y, int64_t num_rows, int64_t offset, DType dtype,
                  const Widen& widen) {
  const int64_t count = std::ssize(y) - offset - kBehind;
  const int64_t num_columns = count / num_rows;
  Random random(4);
  const std::vector<float> rows = random.Normals(num_rows);
  const std::vector<float> columns = random.Normals(num_columns);
  const DeviceArray<T> data(y);
  const DeviceArray<float> row_scales(rows), column_scales(columns);
  ASSERT_EQ(cuda::LaunchScaleRowsAndColumns({data.data() + offset, dtype, num_rows, num_columns},
                                            row_scales.data(), column_scales.data(), nullptr),
            cudaSuccess);
  std::vector<float> want = widen(y);
  for (int64_t i = 0; i < count; ++i) {
    want[static_cast<size_t>(offset + i)] *=
        rows[static_cast<size_t>(i / num_columns)] * columns[static_cast<size_t>(i % num_columns)];
  }
  EXPECT_EQ(widen(data.Read()), RoundedTo(dtype, want))
      << num_rows << " x " << num_columns << " at " << offset;
}

TEST(ScaleRowsAndColumnsTest, AnyWidthAndAnyNumberOfRows) {
  Random random(6);
  for (const int64_t rows : {1, 3, 4, 5, 9}) {
    for (const int64_t columns : {1, 7, 16, 1020, 1023, 1028, 2052}) {
      for (const int64_t offset : {0, 1}) {
        const std::vector<float> y = random.Normals(offset + rows * columns + kBehind);
        ExpectScaled(y, rows, offset, DType::kF32, [](const auto& x) { return x; });
        ExpectScaled(Narrowed<BF16>(y), rows, offset, DType::kBF16, ToFloats<BF16>);
      }
    }
  }
}

// A product of e4m3 rows against the sum over their numbers, in both precisions. Hopper's tensor
// cores align the terms of a step and the sum so far to the largest of them and keep the highest 14
// bits of each (DeepSeek-V3's report, arXiv 2412.19437, section 3.5.2): 99 times something is lost
// here, up to 2^-12 of the largest if both bits before a product's point are among the 14. Computed
// so, these sums are off by up to 2^-9.6 of their terms' magnitudes, of which a term is a 96th.
constexpr double kFp8Tolerance = 0x1p-9;
void ExpectProducts(bool deterministic) {
  constexpr int64_t kOut = 48, kIn = 96;
  Random random(3);
  const std::vector<float> w = random.Normals(kOut * kIn);
  const auto backend = cuda::CudaBackend::Create(
      {.device = 0, .compute = DType::kF32, .deterministic = deterministic});
  ASSERT_TRUE(backend.ok()) << backend.status();
  const auto weight = Fp8Weight(**backend, {.out_features = kOut, .in_features = kIn}, 70);
  (*backend)->FillLinear(*weight, 0, {w.data(), DType::kF32, 40, kIn * 4});
  (*backend)->FillLinear(*weight, 40, {w.data() + 40 * kIn, DType::kF32, 8, kIn * 4});
  EXPECT_EQ(weight->bytes(), kOut * kIn + kOut * 4);
  const Quantized qw = Quantize(w, DType::kF32, kOut);
  for (const int64_t rows : {1, 3, 64, 70}) {
    const std::vector<float> x = random.Normals(rows * kIn);
    const Quantized qx = Quantize(x, DType::kF32, rows);
    DeviceArray<float> input(x);
    DeviceArray<float> output(std::vector<float>(static_cast<size_t>(rows * kOut), NAN));
    (*backend)->Linear(*weight, input.data(), rows, output.data());
    (*backend)->Synchronize();
    const std::vector<float> got = output.Read();
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t out = 0; out < kOut; ++out) {
        const double scale =
            double{qx.scales[static_cast<size_t>(row)]} * qw.scales[static_cast<size_t>(out)];
        double sum = 0;
        double magnitudes = 0;
        for (int64_t k = 0; k < kIn; ++k) {
          const double term = scale * E4m3(qx.q[static_cast<size_t>(row * kIn + k)]) *
                              E4m3(qw.q[static_cast<size_t>(out * kIn + k)]);
          sum += term;
          magnitudes += std::abs(term);
        }
        ASSERT_NEAR(got[static_cast<size_t>(row * kOut + out)], sum, kFp8Tolerance * magnitudes)
            << row << ", " << out << " of " << rows;
      }
    }
  }
}

TEST(Fp8ProductTest, IsTheSumOfTheRoundedNumbers) {
  SKIP_WITHOUT_FP8();
  ExpectProducts(false);
}
TEST(Fp8ProductTest, InTilesOfFixedRowsToo) {
  SKIP_WITHOUT_FP8();
  ExpectProducts(true);
}

// Products by weights of one kind, with a bound and without.
class BoundedProduct {
 public:
  static constexpr int64_t kOut = 48, kIn = 96;
  static constexpr float kBound = 1.5f;

  explicit BoundedProduct(DType compute, bool deterministic) {
    auto backend = cuda::CudaBackend::Create({.compute = compute, .deterministic = deterministic});
    EXPECT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
    Random random(8);
    const std::vector<float> w = random.Normals(kOut * kIn);
    for (auto* weight : {&bounded_, &unbounded_}) {
      LinearShape shape = {.out_features = kOut, .in_features = kIn};
      if (weight == &bounded_) shape.activation_bound = kBound;
      *weight = Fp8Weight(*backend_, shape, 70);
      backend_->FillLinear(**weight, 0, {w.data(), DType::kF32, kOut, kIn * 4});
    }
  }
  std::vector<float> Multiply(const std::vector<float>& x, bool is_bounded) {
    const int64_t rows = std::ssize(x) / kIn;
    const DeviceArray<float> plain(x), output(rows * kOut);
    const DeviceArray<BF16> narrow(Narrowed<BF16>(x));
    const bool is_plain = backend_->LinearInput() == DType::kF32;
    const void* const input = is_plain ? static_cast<const void*>(plain.data()) : narrow.data();
    backend_->Linear(is_bounded ? *bounded_ : *unbounded_, input, rows, output.data());
    backend_->Synchronize();
    return output.Read();
  }

 private:
  std::unique_ptr<cuda::CudaBackend> backend_;
  std::unique_ptr<LinearWeight> bounded_, unbounded_;
};

TEST(Fp8ProductTest, IsOfBoundedNumbersWhereItQuantizesThem) {
  SKIP_WITHOUT_FP8();
  Random random(9);
  for (const bool deterministic : {false, true}) {
    BoundedProduct product(DType::kF32, deterministic);
    // Fewer rows are not quantized everywhere.
    for (const int64_t rows :
         deterministic ? std::vector<int64_t>{1, 70} : std::vector<int64_t>{70}) {
      const std::vector<float> x = random.Normals(rows * BoundedProduct::kIn);
      const std::vector<float> bounded = product.Multiply(x, /*is_bounded=*/true);
      EXPECT_EQ(bounded, product.Multiply(Clamped(x, BoundedProduct::kBound), false)) << rows;
      EXPECT_NE(bounded, product.Multiply(x, /*is_bounded=*/false)) << rows;
    }
  }
}

#ifdef LOCKSTEP_CUDA_EMULATION
// Our kernels for few rows multiply numbers as they are, which no outlier makes smaller.
TEST(Fp8ProductTest, WhatIsNotQuantizedHasNoBound) {
  cuda_emulation::SetDevice({.product_seconds = 0.05});  // ours are faster
  {
    BoundedProduct product(DType::kBF16, /*deterministic=*/false);
    const std::vector<float> x = Random(9).Normals(4 * BoundedProduct::kIn);
    EXPECT_EQ(product.Multiply(x, true), product.Multiply(x, false));
  }
  cuda_emulation::SetDevice({});
}

// Kernels of one product of 3 rows, after one in which its algorithm was chosen.
int64_t KernelsOfAProduct(std::vector<std::string>* notices) {
  constexpr int64_t kRows = 3, kSide = 32;
  const auto backend = cuda::CudaBackend::Create(
      {.compute = DType::kF32,
       .notice = [notices](const std::string& text) { notices->push_back(text); }});
  EXPECT_TRUE(backend.ok()) << backend.status();
  const auto weight = Fp8Weight(**backend, {.out_features = kSide, .in_features = kSide}, kRows);
  DeviceArray<float> input(std::vector<float>(kRows * kSide, 1.0f));
  DeviceArray<float> output(kRows * kSide);
  const auto multiply = [&] {
    (*backend)->Linear(*weight, input.data(), kRows, output.data());
    (*backend)->Synchronize();
    return cuda_emulation::NumKernelsRun();
  };
  const int64_t before = multiply();
  return multiply() - before;
}

TEST(Fp8ProductTest, CublasScalesWhereItCan) {
  std::vector<std::string> notices;
  EXPECT_EQ(KernelsOfAProduct(&notices), 1) << "besides quantizing x";
  EXPECT_TRUE(notices.empty());
}

TEST(Fp8ProductTest, WithoutScalesByRowOurKernelMultiplies) {
  cuda_emulation::SetDevice({.has_fp8_scale_vectors = false});
  std::vector<std::string> notices;
  EXPECT_EQ(KernelsOfAProduct(&notices), 2);
  EXPECT_EQ(notices.size(), 1u);
  ExpectProducts(false);
  ExpectProducts(true);
  cuda_emulation::SetDevice({});
}

// Our kernels read weights before the kernels ahead of them, which may be those that quantize the
// weights, have ended.
TEST(Fp8ProductTest, WeightsFilledJustNowAreWaitedFor) {
  constexpr int64_t kSide = 256;
  cuda_emulation::SetDevice({.product_seconds = 0.05});  // ours are faster
  const auto backend = cuda::CudaBackend::Create({.compute = DType::kBF16});
  ASSERT_TRUE(backend.ok()) << backend.status();
  const auto weight = Fp8Weight(**backend, {.out_features = kSide, .in_features = kSide}, 1);
  Random random(5);
  DeviceArray<BF16> input(Narrowed<BF16>(random.Normals(kSide)));
  const auto multiply = [&] {
    DeviceArray<float> output(kSide);
    (*backend)->Linear(*weight, input.data(), 1, output.data());
    (*backend)->Synchronize();
    return output.Read();
  };
  multiply();  // chosen
  for (int i = 0; i < 2; ++i) {
    const std::vector<float> w = random.Normals(kSide * kSide);
    (*backend)->FillLinear(*weight, 0, {w.data(), DType::kF32, kSide, kSide * 4});
    const std::vector<float> at_once = multiply();
    EXPECT_EQ(at_once, multiply());
  }
  cuda_emulation::SetDevice({});
}

TEST(Fp8ProductTest, OlderDevicesAreRefused) {
  cuda_emulation::SetDevice({.compute_major = 8, .compute_minor = 0});
  const auto backend = cuda::CudaBackend::Create({.compute = DType::kBF16});
  ASSERT_TRUE(backend.ok()) << backend.status();
  const auto weight = (*backend)->AllocateLinear({16, 16, DType::kBF16, 1, Quantization::kFp8});
  EXPECT_EQ(weight.status().code(), absl::StatusCode::kInvalidArgument);
  cuda_emulation::SetDevice({});
}
#endif

}  // namespace
}  // namespace lockstep::testing
