// Products of few rows by the CUDA kernels, against sums in double precision.
#include "kernels/cuda/skinny_gemm.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/kernel_fixture.h"
#ifdef LOCKSTEP_CUDA_EMULATION
#include "tests/support/cuda_emulation/emulation.h"
#endif

namespace lockstep::testing {
namespace {

using cuda::SkinnyProduct;

struct Sizes {
  int64_t num_rows;
  int64_t out_features;
  int64_t in_features;
};
// One k-step of one warp and several of all; edges of tiles, of rows of x and of k. From 9 rows on
// variants share k where the device has room for more blocks than there are tiles of outputs.
constexpr Sizes kSkinnySizes[] = {{1, 16, 128},  {1, 8, 8},     {3, 40, 2064},  {8, 33, 520},
                                  {9, 48, 1040}, {16, 17, 96},  {15, 64, 4096}, {17, 40, 96},
                                  {32, 300, 48}, {33, 70, 912}, {64, 513, 272}, {50, 24, 2064}};

// Of a row's length. Tensor cores add f32 less exactly than an order of f32 additions: terms are
// aligned to the largest of a step and cut off there, always towards zero (Fasi et al., Numerical
// behavior of NVIDIA tensor cores, 2021). Computed so, 64 steps into one accumulator, as many as
// there are here, leave 1.3e-6; a term that is missing, 1e-2 and more.
constexpr double kTolerance = 1e-5;

// [rows, columns] times [outputs, columns] transposed.
std::vector<float> Product(const Sizes& sizes, const std::vector<float>& x,
                           const std::vector<float>& w) {
  std::vector<float> y;
  for (int64_t row = 0; row < sizes.num_rows; ++row) {
    for (int64_t out = 0; out < sizes.out_features; ++out) {
      double sum = 0;
      for (int64_t k = 0; k < sizes.in_features; ++k) {
        sum += double{x[static_cast<size_t>(row * sizes.in_features + k)]} *
               w[static_cast<size_t>(out * sizes.in_features + k)];
      }
      y.push_back(static_cast<float>(sum));
    }
  }
  return y;
}

template <typename T>
std::vector<float> Multiplied(int variant, const Sizes& sizes, DType dtype, const std::vector<T>& x,
                              const void* w, const float* scales) {
  DeviceArray<T> input(x);
  DeviceArray<float> output(sizes.num_rows * sizes.out_features);
  constexpr int64_t kPartialSums = 1 << 18;
  DeviceArray<float> partial_sums(kPartialSums);
  const std::vector<uint32_t> none(cuda::kSkinnyMaxArrivals);
  DeviceArray<uint32_t> arrivals(none);
  const SkinnyProduct product{.num_rows = sizes.num_rows,
                              .out_features = sizes.out_features,
                              .in_features = sizes.in_features,
                              .dtype = dtype,
                              .x = input.data(),
                              .w = w,
                              .scales = scales,
                              .y = output.data(),
                              .prefetched_bytes = variant % 2 == 0 ? 4096 : 64,
                              .num_multiprocessors = 7,
                              .partial_sums = reinterpret_cast<float4*>(partial_sums.data()),
                              .partial_sums_bytes = kPartialSums * int64_t{sizeof(float)},
                              .arrivals = arrivals.data()};
  EXPECT_TRUE(cuda::SkinnyGemmSupports(product));
  EXPECT_EQ(cuda::LaunchSkinnyGemm(variant, product, nullptr), cudaSuccess);
  EXPECT_EQ(arrivals.Read(), none);
  return output.Read();
}

template <typename T>
void ExpectPlainProducts(DType dtype) {
  Random random(1);
  for (const Sizes& sizes : kSkinnySizes) {
    const std::vector<T> x = Narrowed<T>(random.Normals(sizes.num_rows * sizes.in_features));
    const std::vector<T> w = Narrowed<T>(random.Normals(sizes.out_features * sizes.in_features));
    DeviceArray<T> weights(w);
    const std::vector<float> want = Product(sizes, ToFloats(x), ToFloats(w));
    for (int variant = 0; variant < cuda::NumSkinnyVariants(sizes.num_rows); ++variant) {
      EXPECT_TRUE(RowsNear(Multiplied(variant, sizes, dtype, x, weights.data(), nullptr), want,
                           sizes.out_features, kTolerance))
          << sizes.num_rows << " x " << sizes.out_features << " x " << sizes.in_features
          << ", variant " << variant;
    }
  }
}

TEST(SkinnyGemmTest, Bf16) { ExpectPlainProducts<BF16>(DType::kBF16); }
TEST(SkinnyGemmTest, F16) { ExpectPlainProducts<F16>(DType::kF16); }

// Every e4m3 number is among the weights.
template <typename T>
void ExpectFp8Products(DType dtype) {
  Random random(2);
  for (Sizes sizes : kSkinnySizes) {
    sizes.in_features = (sizes.in_features + 15) / 16 * 16;
    const std::vector<T> x = Narrowed<T>(random.Normals(sizes.num_rows * sizes.in_features));
    std::vector<uint8_t> q(static_cast<size_t>(sizes.out_features * sizes.in_features));
    std::vector<float> w, scales;
    for (size_t i = 0; i < q.size(); ++i) {
      const auto bits = static_cast<uint8_t>(i < 256 ? i : static_cast<size_t>(random.Below(256)));
      q[i] = (bits & 0x7f) == 0x7f ? uint8_t{0} : bits;
    }
    for (int64_t out = 0; out < sizes.out_features; ++out) {
      scales.push_back(0.01f * static_cast<float>(out + 1));
      for (int64_t k = 0; k < sizes.in_features; ++k) {
        w.push_back(E4m3(q[static_cast<size_t>(out * sizes.in_features + k)]) * scales.back());
      }
    }
    scales[0] = NAN;  // of weights that were not finite
    DeviceArray<uint8_t> weights(q);
    DeviceArray<float> weight_scales(scales);
    std::vector<float> want = Product(sizes, ToFloats(x), w);
    for (int variant = 0; variant < cuda::NumSkinnyVariants(sizes.num_rows); ++variant) {
      std::vector<float> got =
          Multiplied(variant, sizes, dtype, x, weights.data(), weight_scales.data());
      for (size_t i = 0; i < got.size(); i += static_cast<size_t>(sizes.out_features)) {
        EXPECT_TRUE(std::isnan(got[i]));
        got[i] = want[i];
      }
      EXPECT_TRUE(RowsNear(got, want, sizes.out_features, kTolerance))
          << sizes.num_rows << " x " << sizes.out_features << " x " << sizes.in_features
          << ", variant " << variant;
    }
  }
}

TEST(SkinnyGemmTest, Fp8WeightsByBf16) { ExpectFp8Products<BF16>(DType::kBF16); }
TEST(SkinnyGemmTest, Fp8WeightsByF16) { ExpectFp8Products<F16>(DType::kF16); }

// Of so many rows the first variant of those that share outputs among warps.
int FirstSlender(int64_t num_rows) {
  return cuda::NumSkinnyVariants(num_rows) - cuda::kSlenderVariants;
}

// Other rows of x change nothing of a row's result.
void ExpectRowsOnTheirOwn(bool is_slender, int64_t most_rows, const std::vector<int64_t>& fewer) {
  Random random(3);
  const Sizes sizes{most_rows, 48, 1040};
  const std::vector<BF16> x = Narrowed<BF16>(random.Normals(sizes.num_rows * sizes.in_features));
  DeviceArray<BF16> weights(Narrowed<BF16>(random.Normals(sizes.out_features * sizes.in_features)));
  const int num_variants = is_slender ? cuda::kSlenderVariants : cuda::kFewRowsVariants;
  for (int variant = 0; variant < num_variants; ++variant) {
    const auto multiplied = [&](int64_t rows) {
      const std::vector<BF16> few(x.begin(), x.begin() + rows * sizes.in_features);
      return Multiplied(variant + (is_slender ? FirstSlender(rows) : 0),
                        {rows, sizes.out_features, sizes.in_features}, DType::kBF16, few,
                        weights.data(), nullptr);
    };
    const std::vector<float> all = multiplied(most_rows);
    for (const int64_t rows : fewer) {
      const std::vector<float> got = multiplied(rows);
      EXPECT_EQ(std::memcmp(got.data(), all.data(), got.size() * sizeof(float)), 0) << rows;
    }
  }
}

TEST(SkinnyGemmTest, RowsAreOnTheirOwn) {
  ExpectRowsOnTheirOwn(/*is_slender=*/false, 16, {1, 8, 9});
  ExpectRowsOnTheirOwn(/*is_slender=*/true, 64, {9, 16, 17, 32, 33});
}

#ifdef LOCKSTEP_CUDA_EMULATION
// Whichever block of those that share a sum comes last, and whichever of its warps.
TEST(SkinnyGemmTest, SharedSumsDoNotDependOnWhoComesLast) {
  Random random(4);
  const Sizes sizes{20, 48, 2080};
  const std::vector<BF16> x = Narrowed<BF16>(random.Normals(sizes.num_rows * sizes.in_features));
  DeviceArray<BF16> weights(Narrowed<BF16>(random.Normals(sizes.out_features * sizes.in_features)));
  const auto multiplied = [&](uint64_t order) {
    cuda_emulation::SetThreadOrder(order);
    return Multiplied(0, sizes, DType::kBF16, x, weights.data(), nullptr);
  };
  const std::vector<float> want = multiplied(0);
  for (const uint64_t order : {1, 2, 3}) EXPECT_EQ(multiplied(order), want) << order;
  cuda_emulation::SetThreadOrder(0);
}
#endif

TEST(SkinnyGemmTest, SharedSumsNeedMemory) {
  DeviceArray<BF16> x(std::vector<BF16>(64 * 1024));
  DeviceArray<float> y(64 * 64);
  SkinnyProduct product{.num_rows = 64,
                        .out_features = 64,
                        .in_features = 1024,
                        .x = x.data(),
                        .w = x.data(),
                        .y = y.data(),
                        .num_multiprocessors = 2};
  EXPECT_EQ(cuda::LaunchSkinnyGemm(0, product, nullptr), cudaErrorInvalidValue);
  product.num_multiprocessors = 1;
  EXPECT_EQ(cuda::LaunchSkinnyGemm(0, product, nullptr), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
}

#ifdef LOCKSTEP_CUDA_EMULATION
// Of bf16, with one multiprocessor.
int64_t PrefetchedBytes(int variant, const Sizes& sizes, int64_t most) {
  const DeviceArray<BF16> x(std::vector<BF16>(sizes.num_rows * sizes.in_features));
  const DeviceArray<BF16> w(std::vector<BF16>(sizes.out_features * sizes.in_features));
  const DeviceArray<float> y(sizes.num_rows * sizes.out_features);
  const int64_t before = cuda_emulation::NumPrefetchedBytes();
  EXPECT_EQ(cuda::LaunchSkinnyGemm(variant,
                                   {.num_rows = sizes.num_rows,
                                    .out_features = sizes.out_features,
                                    .in_features = sizes.in_features,
                                    .x = x.data(),
                                    .w = w.data(),
                                    .y = y.data(),
                                    .prefetched_bytes = most,
                                    .num_multiprocessors = 1},
                                   nullptr),
            cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  return cuda_emulation::NumPrefetchedBytes() - before;
}

// Variant 1 has 36 KiB of stages and 1 to itself, in which 1280 bytes of a row find room: six
// blocks of 16 outputs lie on a multiprocessor. The slender kernels' one block has 256 outputs.
TEST(SkinnyGemmTest, BlocksThatBeginEarlyPrefetchWithinTheirRows) {
  cudaDeviceProp device{};
  ASSERT_EQ(cudaGetDeviceProperties(&device, 0), cudaSuccess);
  if (device.major < 9) GTEST_SKIP() << "nothing is prefetched before compute capability 9.0";
  EXPECT_EQ(PrefetchedBytes(1, {1, 128, 4096}, 1024), 6 * 16 * 1024);
  EXPECT_EQ(PrefetchedBytes(1, {1, 40, 4096}, 1024), 40 * 1024);
  EXPECT_EQ(PrefetchedBytes(1, {1, 128, 704}, 1024), 6 * 16 * 128);
  EXPECT_EQ(PrefetchedBytes(1, {1, 128, 640}, 1024), 0);
  EXPECT_EQ(PrefetchedBytes(1, {1, 128, 4096}, 0), 0);
  EXPECT_EQ(PrefetchedBytes(0, {17, 300, 4096}, 2048), 256 * 2048);
}
#endif

TEST(SkinnyGemmTest, RefusesWhatItsAccessesCannotRead) {
  DeviceArray<BF16> x(std::vector<BF16>(1024));
  const SkinnyProduct fits{1, 16, 64, DType::kBF16, x.data(), x.data(), nullptr, nullptr};
  EXPECT_TRUE(cuda::SkinnyGemmSupports(fits));
  const auto refuses = [&](const auto& change) {
    SkinnyProduct product = fits;
    change(product);
    return !cuda::SkinnyGemmSupports(product) &&
           cuda::LaunchSkinnyGemm(0, product, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refuses([](auto& p) { p.num_rows = cuda::kSkinnyMaxRows + 1; }));
  EXPECT_TRUE(refuses([](auto& p) { p.dtype = DType::kF32; }));
  EXPECT_TRUE(refuses([](auto& p) { p.in_features = 60; }));
  EXPECT_TRUE(refuses([&](auto& p) { p.x = x.data() + 4; }));
  EXPECT_TRUE(refuses([&](auto& p) { p.w = x.data() + 1; }));
  for (const int64_t rows : {int64_t{1}, cuda::kSkinnyMostFewRows, cuda::kSkinnyMaxRows}) {
    SkinnyProduct product = fits;
    product.num_rows = rows;
    EXPECT_EQ(cuda::LaunchSkinnyGemm(cuda::NumSkinnyVariants(rows), product, nullptr),
              cudaErrorInvalidValue);
  }
}

}  // namespace
}  // namespace lockstep::testing
