// AddRmsNorm and SiluMul that quantize for the product that reads them, against the same in
// separate kernels: bit for bit.
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/kernel_fixture.h"

namespace lockstep::testing {
namespace {

using cuda::E4m3Rows;

// That vectors fit and do not fit. Longer than what blocks keep: of a norm 16388 and, by single
// numbers, 4097; of a gated row 32772 and 30001, in f32 28672.
const std::vector<int64_t> kWidths = {1,    3,    4,    7,     16,    33,    100,   1000,
                                      1024, 4097, 4112, 16384, 16388, 28672, 30001, 32772};
// Below some numbers of some rows, and what it is tried with.
constexpr float kBound = 2.0f;
const std::vector<int64_t> kBoundedWidths = {33, 100, 4112, 30001};
constexpr DType kFusedTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

int64_t RowsOf(int64_t width) { return width < 2000 ? 9 : 6; }

// Rows one after another: usual numbers, zeros, what is denormal in f32, what is nearly infinite in
// f16 or by rounding to bf16, an infinity, a NaN, and usual ones again.
std::vector<float> HostileRows(Random& random, int64_t num_rows, int64_t width) {
  std::vector<float> x = random.Normals(num_rows * width);
  for (int64_t row = 0; row < num_rows; ++row) {
    const auto begin = x.begin() + row * width;
    const auto scale = [&](float factor) {
      for (auto i = begin; i != begin + width; ++i) *i *= factor;
    };
    float& some = *(begin + random.Below(static_cast<int>(width)));
    if (row == 1) scale(0.0f);
    if (row == 2) scale(1e-41f);
    if (row == 3) some = 65519.0f * (random.Below(2) == 0 ? 1.0f : 1.0001f);
    if (row == 4) some = INFINITY;
    if (row == 5) some = NAN;
    if (row == 6) some = 3.4e38f;
    if (row == 7) scale(1e30f);
  }
  return x;
}

struct Bits {
  std::vector<uint8_t> q;
  std::vector<uint32_t> scales;
  friend bool operator==(const Bits&, const Bits&) = default;
};

struct BoundedRows {
  int64_t num_rows = 0;
  int64_t width = 0;
  float bound = kNoActivationBound;
};

// What launch(rows) writes.
Bits BitsOf(const BoundedRows& of, const std::function<cudaError_t(E4m3Rows)>& launch) {
  const DeviceArray<uint8_t> q(of.num_rows * of.width);
  const DeviceArray<uint32_t> scales(of.num_rows);
  const E4m3Rows rows = {q.data(), reinterpret_cast<float*>(scales.data())};
  EXPECT_EQ(launch(rows.Bounded(of.bound)), cudaSuccess);
  return {q.Read(), scales.Read()};
}

// The same from rows of T that launch(out) writes.
template <typename T>
Bits SeparateBits(DType dtype, const BoundedRows& of, int shift,
                  const std::function<cudaError_t(void*)>& launch) {
  const DeviceArray<T> rows(of.num_rows * of.width, shift);
  EXPECT_EQ(launch(rows.data()), cudaSuccess);
  return BitsOf(of, [&](E4m3Rows out) {
    return cuda::LaunchQuantizeFp8(rows.data(), dtype, of.num_rows, of.width, out, nullptr);
  });
}
Bits SeparateBits(DType dtype, const BoundedRows& of, int shift,
                  const std::function<cudaError_t(void*)>& launch) {
  if (dtype == DType::kF32) return SeparateBits<float>(dtype, of, shift, launch);
  if (dtype == DType::kF16) return SeparateBits<F16>(dtype, of, shift, launch);
  return SeparateBits<BF16>(dtype, of, shift, launch);
}

enum class Delta { kNone, kPlain, kRounded };

void ExpectSameNorms(const BoundedRows& rows, Delta added, int shift) {
  const auto [num_rows, width, bound] = rows;
  Random random(static_cast<uint32_t>(width));
  const std::vector<float> x = HostileRows(random, num_rows, width);
  const std::vector<float> deltas = random.Normals(num_rows * width);
  const DeviceArray<float> plain(deltas, shift);
  const DeviceArray<BF16> rounded(Narrowed<BF16>(deltas), shift);
  const DeviceArray<float> weight(random.Normals(width), shift);
  for (const DType dtype : kFusedTypes) {
    const DeviceArray<float> residual(x, shift), other(x, shift);
    const auto args = [&](const DeviceArray<float>& of, void* out) {
      RmsNormArgs args = {of.data(), nullptr, weight.data(), 1e-5f, num_rows, width, out};
      if (added == Delta::kPlain) args.delta = plain.data();
      if (added == Delta::kRounded) args.delta = rounded.data();
      if (added == Delta::kRounded) args.delta_dtype = DType::kBF16;
      return args;
    };
    const Bits want = SeparateBits(dtype, rows, shift, [&](void* out) {
      return cuda::LaunchAddRmsNorm(args(residual, out), dtype, nullptr);
    });
    const Bits got = BitsOf(rows, [&](E4m3Rows out) {
      return cuda::LaunchAddRmsNormFp8(args(other, nullptr), dtype, out, nullptr);
    });
    ASSERT_TRUE(got == want) << num_rows << " x " << width << " " << DTypeName(dtype);
    ASSERT_TRUE(SameBits(other.Read(), residual.Read())) << width;
  }
}

TEST(FusedFp8Test, NormsAreTheBitsOfSeparateKernels) {
  for (const int64_t width : kWidths) {
    ExpectSameNorms({RowsOf(width), width}, Delta::kPlain, /*shift=*/0);
    ExpectSameNorms({1, width}, Delta::kRounded, /*shift=*/0);
    ExpectSameNorms({1, width}, Delta::kNone, /*shift=*/0);
  }
  for (const int64_t width : {4, 100, 4112}) {
    ExpectSameNorms({9, width}, Delta::kPlain, /*shift=*/1);
    ExpectSameNorms({2, width}, Delta::kRounded, /*shift=*/1);
  }
  for (const int64_t width : kBoundedWidths) {
    ExpectSameNorms({RowsOf(width), width, kBound}, Delta::kPlain, /*shift=*/0);
  }
}

void ExpectSameGated(const BoundedRows& rows, int shift) {
  const auto [num_rows, width, bound] = rows;
  Random random(static_cast<uint32_t>(width));
  std::vector<float> x = HostileRows(random, num_rows, 2 * width);
  for (int64_t i = 0; i < width && num_rows > 1; i += 3) x[static_cast<size_t>(i)] *= 60.0f;
  const DeviceArray<float> plain(x, shift);
  const DeviceArray<BF16> rounded(Narrowed<BF16>(x), shift);
  for (const bool is_rounded : {false, true}) {
    const void* const gate_up =
        is_rounded ? static_cast<const void*>(rounded.data()) : plain.data();
    SiluMulArgs args = {gate_up, num_rows, width, /*out=*/nullptr};
    if (is_rounded) args.gate_up_dtype = DType::kBF16;
    for (const DType dtype : kFusedTypes) {
      const Bits want = SeparateBits(dtype, rows, shift, [&](void* out) {
        args.out = out;
        return cuda::LaunchSiluMul(args, dtype, nullptr);
      });
      const Bits got = BitsOf(
          rows, [&](E4m3Rows out) { return cuda::LaunchSiluMulFp8(args, dtype, out, nullptr); });
      ASSERT_TRUE(got == want) << num_rows << " x " << width << " " << DTypeName(args.gate_up_dtype)
                               << " to " << DTypeName(dtype);
    }
  }
}

TEST(FusedFp8Test, GatedRowsAreTheBitsOfSeparateKernels) {
  for (const int64_t width : kWidths) {
    ExpectSameGated({RowsOf(width), width}, /*shift=*/0);
    ExpectSameGated({1, width}, /*shift=*/0);
  }
  for (const int64_t width : {4, 100, 4112}) ExpectSameGated({9, width}, /*shift=*/1);
  for (const int64_t width : kBoundedWidths) {
    ExpectSameGated({RowsOf(width), width, kBound}, /*shift=*/0);
  }
}

TEST(FusedFp8Test, NoRowsAreNoWork) {
  EXPECT_EQ(cuda::LaunchAddRmsNormFp8({}, DType::kBF16, {}, nullptr), cudaSuccess);
  EXPECT_EQ(cuda::LaunchSiluMulFp8({nullptr, 0, 16, nullptr}, DType::kBF16, {}, nullptr),
            cudaSuccess);
}

}  // namespace
}  // namespace lockstep::testing
