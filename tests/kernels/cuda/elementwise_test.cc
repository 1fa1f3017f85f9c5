// The elementwise CUDA kernels against the reference backend, over sizes and alignments that
// vectors fit and do not fit.
#include <vector>

#include "kernels/cpu_backend_options.h"
#include "kernels/cuda/kernels.h"
#include "kernels/host_rows.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/paged_world.h"

namespace lockstep::testing {
namespace {

const std::vector<int64_t> kSizes = {1, 3, 4, 7, 8, 31, 32, 33, 100, 128, 1000, 1024, 2049};
constexpr cudaStream_t kStream = nullptr;
const std::vector<int> kShifts = {0, 1};  // elements, from where vectors may be read
constexpr DType kAllTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr DType kCacheTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kE4M3};

// Is a kernel's output, which a launch(out) writes, near what is wanted, whose errors of
// `relative` and `absolute` may become one of the output's rounding?
template <typename Kernel>
::testing::AssertionResult OutputIsNear(DType dtype, int shift, const Kernel& launch,
                                        std::vector<float> want, double relative,
                                        double absolute = 0.0) {
  const auto size = static_cast<int64_t>(want.size());
  const auto got =
      Filled(dtype, size, shift, [&](void* out) { EXPECT_EQ(launch(out), cudaSuccess); });
  if (dtype == DType::kBF16) relative += 0x1p-8;
  if (dtype == DType::kF16) {
    relative += 0x1p-10;
    absolute += 0x1p-24;
    for (float& x : want) x = std::isinf(ToFloat(ToF16(x))) ? ToFloat(ToF16(x)) : x;
  }
  return Near(got, want, relative, absolute);
}

class CudaElementwise : public ::testing::Test {
 protected:
  std::unique_ptr<Backend> reference_ = MakeReferenceBackend();
  Random random_{1};
};

TEST_F(CudaElementwise, EmbedEqualsTwinAndIsZeroOutsideTheShard) {
  constexpr int64_t kRows = 9;
  const std::vector<int32_t> ids = {20, 28, 19, 29, 24, -1, 0, 2000000000};  // shard: 20..28
  const auto num_ids = static_cast<int64_t>(ids.size());
  const DeviceArray<int32_t> device_ids(ids);
  for (const int64_t hidden : kSizes) {
    for (const int shift : kShifts) {
      const std::vector<float> table = random_.Wild(kRows * hidden);
      const auto expect_twin = [&](DType dtype, const auto& numbers) {
        EmbedArgs args = {numbers.data(), dtype, kRows, 20, hidden, ids.data(), num_ids, nullptr};
        std::vector<float> want(num_ids * hidden);
        args.out = want.data();
        reference_->Embed(args);
        const DeviceArray<float> out(num_ids * hidden, shift);
        const DeviceArray device_table(numbers, shift);
        args.table = device_table.data();
        args.ids = device_ids.data();
        args.out = out.data();
        ASSERT_EQ(cuda::LaunchEmbed(args, kStream), cudaSuccess);
        ASSERT_TRUE(SameBits(out.Read(), want)) << hidden << " " << DTypeName(dtype);
      };
      expect_twin(DType::kF32, table);
      expect_twin(DType::kBF16, Narrowed<BF16>(table));
      expect_twin(DType::kF16, Narrowed<F16>(table));
    }
  }
}

TEST_F(CudaElementwise, AddRmsNormIsNearItsTwin) {
  std::vector<int64_t> sizes = kSizes;
  sizes.insert(sizes.end(), {4096, 5000, 16384, 16388, 20003});  // rows longer than a block keeps
  for (const int64_t hidden : sizes) {
    const int64_t num_tokens = hidden < 100 ? 5 : 2;
    const std::vector<float> x = random_.Normals(num_tokens * hidden);
    const std::vector<float> delta = random_.Normals(num_tokens * hidden);
    const std::vector<float> weight = random_.Normals(hidden);
    for (const bool with_delta : {false, true}) {
      std::vector<float> want_residual = x;
      std::vector<float> want(x.size());
      reference_->AddRmsNorm({want_residual.data(), with_delta ? delta.data() : nullptr,
                              weight.data(), 1e-5f, num_tokens, hidden, want.data()});
      for (const int shift : kShifts) {
        const DeviceArray<float> device_delta(delta, shift);
        const DeviceArray<float> device_weight(weight, shift);
        for (const DType dtype : kAllTypes) {
          const DeviceArray<float> residual(x, shift);
          const float* d = with_delta ? device_delta.data() : nullptr;
          const auto launch = [&](void* out) {
            return cuda::LaunchAddRmsNorm(
                {residual.data(), d, device_weight.data(), 1e-5f, num_tokens, hidden, out}, dtype,
                kStream);
          };
          ASSERT_TRUE(OutputIsNear(dtype, shift, launch, want, 1e-5)) << hidden;
          ASSERT_TRUE(SameBits(residual.Read(), want_residual)) << hidden;
        }
      }
    }
  }
}

// As products of longer steps leave them.
TEST_F(CudaElementwise, RoundedDeltasAreAddedAsTheirNumbersAre) {
  std::vector<int64_t> sizes = kSizes;
  sizes.insert(sizes.end(), {5000, 20003});  // rows longer than a block keeps
  for (const int64_t hidden : sizes) {
    const std::vector<float> x = random_.Normals(2 * hidden);
    const std::vector<BF16> rounded = Narrowed<BF16>(random_.Normals(2 * hidden));
    const DeviceArray<float> weight(random_.Normals(hidden));
    for (const int shift : kShifts) {
      const DeviceArray<BF16> delta(rounded, shift);
      const DeviceArray<float> same(ToFloats(rounded), shift);
      const auto residual_and_norm = [&](const void* added, DType dtype) {
        const DeviceArray<float> residual(x, shift), out(2 * hidden);
        EXPECT_EQ(cuda::LaunchAddRmsNorm({.residual = residual.data(),
                                          .delta = added,
                                          .weight = weight.data(),
                                          .eps = 1e-5f,
                                          .num_tokens = 2,
                                          .hidden = hidden,
                                          .out = out.data(),
                                          .delta_dtype = dtype},
                                         DType::kF32, kStream),
                  cudaSuccess);
        return std::pair(residual.Read(), out.Read());
      };
      const auto got = residual_and_norm(delta.data(), DType::kBF16);
      const auto want = residual_and_norm(same.data(), DType::kF32);
      ASSERT_TRUE(SameBits(got.first, want.first)) << hidden;
      ASSERT_TRUE(SameBits(got.second, want.second)) << hidden;
      const DeviceArray<float> sum(x, shift);
      ASSERT_EQ(cuda::LaunchAdd(sum.data(), delta.data(), DType::kBF16, 2 * hidden, kStream),
                cudaSuccess);
      ASSERT_TRUE(SameBits(sum.Read(), want.first)) << hidden;
    }
  }
}

TEST_F(CudaElementwise, SiluMulIsNearItsTwin) {
  for (const int64_t width : kSizes) {
    for (const int64_t num_tokens : {1, 2, 5}) {
      const std::vector<float> x = random_.Wild(num_tokens * 2 * width);
      std::vector<float> want(num_tokens * width);
      reference_->SiluMul({x.data(), num_tokens, width, want.data()});
      for (const int shift : kShifts) {
        const DeviceArray<float> in(x, shift);
        for (const DType dtype : kAllTypes) {
          const auto launch = [&](void* out) {
            return cuda::LaunchSiluMul({in.data(), num_tokens, width, out}, dtype, kStream);
          };
          // The twin's exponential is infinite a little earlier, where the gate is below 1e-36.
          ASSERT_TRUE(OutputIsNear(dtype, shift, launch, want, 1e-5, 1e-26)) << width;
        }
      }
    }
  }
}

// As products of more than a few rows leave them.
TEST_F(CudaElementwise, SiluMulOfRoundedRowsIsThatOfTheirNumbers) {
  for (const int64_t width : kSizes) {
    const std::vector<BF16> rounded = Narrowed<BF16>(random_.Normals(3 * 2 * width));
    const std::vector<float> x = ToFloats(rounded);
    std::vector<float> want(3 * width);
    reference_->SiluMul({x.data(), 3, width, want.data()});
    for (const int shift : kShifts) {
      const DeviceArray<BF16> in(rounded, shift);
      for (const DType dtype : kAllTypes) {
        const auto launch = [&](void* out) {
          return cuda::LaunchSiluMul({in.data(), 3, width, out, /*consumer=*/nullptr, DType::kBF16},
                                     dtype, kStream);
        };
        ASSERT_TRUE(OutputIsNear(dtype, shift, launch, want, 1e-5, 1e-26)) << width;
      }
    }
  }
  EXPECT_EQ(
      cuda::LaunchSiluMul({nullptr, 3, 8, nullptr, nullptr, DType::kF16}, DType::kF16, kStream),
      cudaErrorInvalidValue);
}

TEST_F(CudaElementwise, GatherRowsAndAddEqualTheirTwins) {
  const std::vector<int32_t> rows = {4, 0, 4, 2};
  const DeviceArray<int32_t> device_rows(rows);
  for (const int64_t width : kSizes) {
    const std::vector<float> in = random_.Wild(5 * width);
    const std::vector<float> src = random_.Wild(4 * width);
    std::vector<float> want(4 * width);
    reference_->GatherRows(in.data(), rows.data(), 4, width * 4, want.data());
    reference_->Add(want.data(), src.data(), DType::kF32, 4 * width);
    for (const int shift : kShifts) {
      const DeviceArray<float> device_in(in, shift);
      const DeviceArray<float> device_src(src, shift);
      DeviceArray<float> out(4 * width, shift);
      ASSERT_EQ(cuda::LaunchGatherRows(device_in.data(), device_rows.data(), 4, width * 4,
                                       out.data(), kStream),
                cudaSuccess);
      ASSERT_EQ(cuda::LaunchAdd(out.data(), device_src.data(), DType::kF32, 4 * width, kStream),
                cudaSuccess);
      ASSERT_TRUE(SameBits(out.Read(), want)) << width;
    }
  }
}

struct Roped {
  std::vector<float> qkv;  // as numbers, whatever they lie as
  std::vector<uint8_t> keys;
  std::vector<uint8_t> values;
};

// G: what products leave.
template <typename G>
Roped RopeOnDevice(const PagedWorld& world, const std::vector<G>& numbers,
                   const std::vector<int64_t>& slots, int shift) {
  const DeviceArray<uint8_t> keys(world.RowMajorKeys());
  const DeviceArray<uint8_t> values(world.values());
  const DeviceArray<G> qkv(numbers, shift);
  const DeviceArray<float> cos(world.cos(), shift);
  const DeviceArray<float> sin(world.sin(), shift);
  const DeviceArray<int64_t> device_slots(slots);
  const DeviceArray<int32_t> positions(world.flat().positions);
  BatchIndex batch = world.batch();
  batch.positions = positions.data();
  batch.slot_mapping = device_slots.data();
  KvCacheView cache = world.cache();
  cache.k = keys.data();
  cache.v = values.data();
  constexpr bool kIsPlain = std::is_same_v<G, float>;
  const DeviceArray<float> bias(world.bias(), shift);
  const DeviceArray<float> q_norm(world.q_norm(), shift);
  const DeviceArray<float> k_norm(world.k_norm(), shift);
  HeadAdjustments adjust = world.adjust();
  if (adjust.bias != nullptr) adjust.bias = bias.data();
  if (adjust.q_norm != nullptr) adjust.q_norm = q_norm.data();
  if (adjust.k_norm != nullptr) adjust.k_norm = k_norm.data();
  EXPECT_EQ(
      cuda::LaunchRopeAndWriteKv({qkv.data(), world.shape().num_heads, cos.data(), sin.data(),
                                  &batch, &cache, kIsPlain ? DType::kF32 : DType::kBF16, adjust},
                                 kStream),
      cudaSuccess);
  Roped roped = {{}, keys.Read(), values.Read()};
  if constexpr (kIsPlain) {
    roped.qkv = qkv.Read();
  } else {
    roped.qkv = ToFloats(qkv.Read());
  }
  return roped;
}
Roped RopeOnDevice(const PagedWorld& world, const std::vector<int64_t>& slots, int shift) {
  return RopeOnDevice(world, world.qkv(), slots, shift);
}

void ExpectRopeOfTwin(const PagedShape& shape, int shift) {
  PagedWorld world(shape, {{5, 1}, {0, 9}, {3, 2}}, 7);
  const Roped got = RopeOnDevice(world, world.flat().slots, shift);
  world.WriteBatch();
  // Keys lie rotated in the cache alone.
  const int64_t q_width = int64_t{shape.num_heads} * shape.head_dim;
  for (int64_t token = 0; token < std::ssize(world.qkv()) / world.width(); ++token) {
    const auto q_of = [&](const std::vector<float>& qkv) {
      const auto begin = qkv.begin() + token * world.width();
      return std::vector<float>(begin, begin + q_width);
    };
    ASSERT_TRUE(SameBits(q_of(got.qkv), q_of(world.qkv()))) << shape.head_dim;
  }
  ASSERT_TRUE(got.keys == world.RowMajorKeys()) << shape.head_dim;
  ASSERT_TRUE(got.values == world.values()) << shape.head_dim;
}

TEST_F(CudaElementwise, RopeAndWriteKvEqualsTwin) {
  for (const DType dtype : kCacheTypes) {
    for (const int head_dim : {2, 6, 8, 10, 16, 34, 64, 80, 128, 256}) {
      for (const int shift : kShifts) {
        ExpectRopeOfTwin({4, 2, head_dim, 4, dtype}, shift);
        ExpectRopeOfTwin({3, 3, head_dim, 3, dtype}, shift);
      }
    }
  }
}

TEST_F(CudaElementwise, RopeAndWriteKvByScalesEqualsTwin) {
  for (const bool has_bias : {false, true}) {
    PagedShape shape = {4, 2, 34, 4, DType::kE4M3, has_bias};
    shape.k_scale = 0.0371f;
    shape.v_scale = 3.0f;
    ExpectRopeOfTwin(shape, 0);
  }
}

// The sums of squares are added in another order than the twin's.
void ExpectNormedRopeNearTwin(const PagedShape& shape, int shift) {
  PagedWorld world(shape, {{5, 1}, {0, 9}, {3, 2}}, 7);
  const Roped got = RopeOnDevice(world, world.flat().slots, shift);
  world.WriteBatch();
  for (size_t i = 0; i < world.qkv().size(); ++i) {
    if (static_cast<int64_t>(i) % world.width() >= int64_t{shape.num_heads} * shape.head_dim)
      continue;
    ASSERT_NEAR(got.qkv[i], world.qkv()[i], 1e-5) << shape.head_dim << ", element " << i;
  }
  const auto numbers = [&](const std::vector<uint8_t>& bytes) {
    std::vector<float> wide(bytes.size() / DTypeBytes(shape.dtype));
    WidenRow(bytes.data(), shape.dtype, std::ssize(wide), wide.data());
    return wide;
  };
  const bool is_e4m3 = shape.dtype == DType::kE4M3;
  const double rounding = is_e4m3 ? 0x1p-3 : shape.dtype == DType::kF32 ? 1e-5 : 0x1p-7;
  ASSERT_TRUE(
      Near(numbers(got.keys), numbers(world.RowMajorKeys()), rounding, is_e4m3 ? 0x1p-9 : 1e-5));
  ASSERT_TRUE(got.values == world.values()) << shape.head_dim;
}

TEST_F(CudaElementwise, RopeOfAdjustedHeadsIsItsTwins) {
  for (const DType dtype : kCacheTypes) {
    for (const int head_dim : {2, 6, 16, 34, 64, 80, 128, 256}) {
      for (const int shift : kShifts) {
        ExpectRopeOfTwin({4, 2, head_dim, 4, dtype, /*has_bias=*/true}, shift);
        ExpectNormedRopeNearTwin({4, 2, head_dim, 4, dtype, false, /*has_norms=*/true}, shift);
        ExpectNormedRopeNearTwin({3, 3, head_dim, 3, dtype, true, true}, shift);
      }
    }
  }
}

TEST_F(CudaElementwise, RopeOfRoundedRowsIsThatOfTheirNumbersRounded) {
  for (const DType dtype : kCacheTypes) {
    for (const int head_dim : {2, 8, 34, 64, 128}) {
      for (const bool is_adjusted : {false, true}) {
        PagedWorld world({4, 2, head_dim, 4, dtype, is_adjusted, is_adjusted},
                         {{5, 1}, {0, 9}, {3, 2}}, 7);
        const std::vector<BF16> rounded = Narrowed<BF16>(world.qkv());
        const int64_t q_width = int64_t{4} * head_dim;
        for (const int shift : kShifts) {
          const Roped got = RopeOnDevice(world, rounded, world.flat().slots, shift);
          Roped want = RopeOnDevice(world, ToFloats(rounded), world.flat().slots, shift);
          for (int64_t i = 0; i < std::ssize(want.qkv); ++i) {
            if (i % world.width() < q_width)
              want.qkv[i] = RoundedTo(DType::kBF16, {want.qkv[i]})[0];
          }
          ASSERT_TRUE(SameBits(got.qkv, want.qkv)) << head_dim;
          ASSERT_TRUE(got.keys == want.keys) << head_dim;
          ASSERT_TRUE(got.values == want.values) << head_dim;
        }
      }
    }
  }
}

// What becomes of v in a cache of one block to a token.
std::vector<float> ThroughCache(DType dtype, const std::vector<float>& v, int head_dim) {
  const auto num_tokens = static_cast<int64_t>(v.size()) / head_dim;
  std::vector<float> numbers;  // q, k and v are the same
  std::vector<int64_t> slots(num_tokens);
  for (int64_t token = 0; token < num_tokens; ++token) {
    slots[token] = token;
    for (int part = 0; part < 3; ++part) {
      numbers.insert(numbers.end(), v.begin() + token * head_dim,
                     v.begin() + (token + 1) * head_dim);
    }
  }
  const DeviceArray<float> qkv(numbers);
  const DeviceArray<float> angles(std::vector<float>(head_dim / 2, 0.0f));
  const DeviceArray<int32_t> positions(std::vector<int32_t>(num_tokens, 0));
  const DeviceArray<int64_t> device_slots(slots);
  BatchIndex batch;
  batch.num_tokens = num_tokens;
  batch.positions = positions.data();
  batch.slot_mapping = device_slots.data();
  const DeviceArray<uint8_t> keys(num_tokens * head_dim * DTypeBytes(dtype));
  return Filled(dtype, num_tokens * head_dim, 0, [&](void* values) {
    const KvCacheView cache = {keys.data(), values, dtype, num_tokens, 1, 1, head_dim};
    EXPECT_EQ(cuda::LaunchRopeAndWriteKv(
                  {qkv.data(), 1, angles.data(), angles.data(), &batch, &cache}, kStream),
              cudaSuccess);
  });
}

TEST_F(CudaElementwise, NumbersAreRoundedAsScalarConversionsDo) {
  std::vector<float> numbers;
  for (uint32_t upper = 0; upper < 0x10000; upper += 3) {
    for (const uint32_t lower : {0x0000u, 0x1000u, 0x7fffu, 0x8000u, 0x8001u, 0xf000u}) {
      numbers.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  numbers.resize(numbers.size() / 24 * 24);
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kE4M3}) {
    const std::vector<float> want = RoundedTo(dtype, numbers);
    for (const int head_dim : {8, 6}) {
      ASSERT_TRUE(SameBits(ThroughCache(dtype, numbers, head_dim), want)) << head_dim;
    }
  }
}

TEST_F(CudaElementwise, NothingIsWrittenForSlotsBelowZero) {
  for (const int head_dim : {6, 16}) {
    for (const bool is_adjusted : {false, true}) {
      for (const DType dtype : {DType::kBF16, DType::kE4M3}) {
        const PagedWorld world({4, 2, head_dim, 4, dtype, is_adjusted, is_adjusted}, {{0, 3}}, 8);
        const Roped got = RopeOnDevice(world, {-1, -1, -1}, 0);
        EXPECT_TRUE(got.keys == world.RowMajorKeys());
        EXPECT_TRUE(got.values == world.values());
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
