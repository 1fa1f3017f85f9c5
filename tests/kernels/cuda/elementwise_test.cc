// The elementwise CUDA kernels against the reference backend, over sizes and alignments that
// vectors fit and do not fit.
#include <vector>

#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/paged_world.h"

namespace lockstep::testing {
namespace {

const std::vector<int64_t> kSizes = {1, 3, 4, 7, 8, 31, 32, 33, 100, 128, 1000, 1024, 2049};
constexpr cudaStream_t kStream = nullptr;
const std::vector<int> kShifts = {0, 1};  // elements, from where vectors may be read

// The result of a kernel with an output of either type, as floats.
template <typename Kernel>
std::vector<float> Output(DType dtype, int64_t size, int shift, const Kernel& kernel) {
  if (dtype == DType::kF32) {
    DeviceArray<float> out(size, shift);
    EXPECT_EQ(kernel(out.data()), cudaSuccess);
    return out.Read();
  }
  DeviceArray<BF16> out(size, shift);
  EXPECT_EQ(kernel(out.data()), cudaSuccess);
  return ToFloats(out.Read());
}

// What an f32 error of `relative` may become in the output.
double Tolerance(DType dtype, double relative) {
  return dtype == DType::kF32 ? relative : relative + 0x1p-8;
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
      const std::vector<BF16> narrow_table = ToBF16s(table);
      const DeviceArray<float> f32(table, shift);
      const DeviceArray<BF16> bf16(narrow_table, shift);
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const bool wide = dtype == DType::kF32;
        Backend::EmbedArgs args = {wide ? static_cast<const void*>(table.data())
                                        : static_cast<const void*>(narrow_table.data()),
                                   dtype,
                                   kRows,
                                   20,
                                   hidden,
                                   ids.data(),
                                   num_ids,
                                   nullptr};
        std::vector<float> want(num_ids * hidden);
        args.out = want.data();
        reference_->Embed(args);
        DeviceArray<float> out(num_ids * hidden, shift);
        args.table = wide ? static_cast<const void*>(f32.data()) : bf16.data();
        args.ids = device_ids.data();
        args.out = out.data();
        ASSERT_EQ(cuda::LaunchEmbed(args, kStream), cudaSuccess);
        ASSERT_TRUE(SameBits(out.Read(), want)) << hidden << " " << DTypeName(dtype);
      }
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
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          const DeviceArray<float> residual(x, shift);
          const float* d = with_delta ? device_delta.data() : nullptr;
          const auto got = Output(dtype, num_tokens * hidden, shift, [&](void* out) {
            return cuda::LaunchAddRmsNorm(
                {residual.data(), d, device_weight.data(), 1e-5f, num_tokens, hidden, out}, dtype,
                kStream);
          });
          ASSERT_TRUE(SameBits(residual.Read(), want_residual)) << hidden;
          ASSERT_TRUE(Near(got, want, Tolerance(dtype, 1e-5))) << hidden;
        }
      }
    }
  }
}

TEST_F(CudaElementwise, SiluMulIsNearItsTwin) {
  for (const int64_t width : kSizes) {
    for (const int64_t num_tokens : {1, 2, 5}) {
      const std::vector<float> x = random_.Wild(num_tokens * 2 * width);
      std::vector<float> want(num_tokens * width);
      reference_->SiluMul(x.data(), num_tokens, width, want.data());
      for (const int shift : kShifts) {
        const DeviceArray<float> in(x, shift);
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          const auto got = Output(dtype, num_tokens * width, shift, [&](void* out) {
            return cuda::LaunchSiluMul(in.data(), num_tokens, width, out, dtype, kStream);
          });
          // The twin's exponential is infinite a little earlier, where the gate is below 1e-36.
          ASSERT_TRUE(Near(got, want, Tolerance(dtype, 1e-5), 1e-26)) << width;
        }
      }
    }
  }
}

TEST_F(CudaElementwise, GatherRowsAndAddEqualTheirTwins) {
  const std::vector<int32_t> rows = {4, 0, 4, 2};
  const DeviceArray<int32_t> device_rows(rows);
  for (const int64_t width : kSizes) {
    const std::vector<float> in = random_.Wild(5 * width);
    const std::vector<float> src = random_.Wild(4 * width);
    std::vector<float> want(4 * width);
    reference_->GatherRows(in.data(), rows.data(), 4, width, want.data());
    reference_->Add(want.data(), src.data(), 4 * width);
    for (const int shift : kShifts) {
      const DeviceArray<float> device_in(in, shift);
      const DeviceArray<float> device_src(src, shift);
      DeviceArray<float> out(4 * width, shift);
      ASSERT_EQ(cuda::LaunchGatherRows(device_in.data(), device_rows.data(), 4, width, out.data(),
                                       kStream),
                cudaSuccess);
      ASSERT_EQ(cuda::LaunchAdd(out.data(), device_src.data(), 4 * width, kStream), cudaSuccess);
      ASSERT_TRUE(SameBits(out.Read(), want)) << width;
    }
  }
}

TEST_F(CudaElementwise, RoundToBf16EqualsScalarConversion) {
  std::vector<float> in;
  for (uint32_t upper = 0; upper < 0x10000; upper += 3) {
    for (const uint32_t lower : {0x0000u, 0x7fffu, 0x8000u, 0x8001u}) {
      in.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  for (const int cut : {0, 3}) {
    const auto size = static_cast<int64_t>(in.size()) - cut;
    in.resize(size);
    const DeviceArray<float> device_in(in);
    DeviceArray<BF16> out(size);
    ASSERT_EQ(cuda::LaunchRoundToBf16(device_in.data(), size, out.data(), kStream), cudaSuccess);
    EXPECT_TRUE(SameBits(ToFloats(out.Read()), RoundedToBf16(in)));
  }
}

struct Roped {
  std::vector<float> qkv;
  std::vector<uint8_t> keys;
  std::vector<uint8_t> values;
};

Roped RopeOnDevice(const PagedWorld& world, const std::vector<int64_t>& slots, int shift) {
  const DeviceArray<uint8_t> keys(world.RowMajorKeys());
  const DeviceArray<uint8_t> values(world.values());
  const DeviceArray<float> qkv(world.qkv(), shift);
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
  EXPECT_EQ(
      cuda::LaunchRopeAndWriteKv(
          {qkv.data(), world.shape().num_heads, cos.data(), sin.data(), &batch, &cache}, kStream),
      cudaSuccess);
  return {qkv.Read(), keys.Read(), values.Read()};
}

void ExpectRopeOfTwin(const PagedShape& shape, int shift) {
  PagedWorld world(shape, {{5, 1}, {0, 9}, {3, 2}}, 7);
  const Roped got = RopeOnDevice(world, world.flat().slots, shift);
  world.WriteBatch();
  ASSERT_TRUE(SameBits(got.qkv, world.qkv())) << shape.head_dim;
  ASSERT_TRUE(got.keys == world.RowMajorKeys()) << shape.head_dim;
  ASSERT_TRUE(got.values == world.values()) << shape.head_dim;
}

TEST_F(CudaElementwise, RopeAndWriteKvEqualsTwin) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int head_dim : {2, 6, 8, 10, 16, 34, 64, 80, 128, 256}) {
      for (const int shift : kShifts) {
        ExpectRopeOfTwin({4, 2, head_dim, 4, dtype}, shift);
        ExpectRopeOfTwin({3, 3, head_dim, 3, dtype}, shift);
      }
    }
  }
}

TEST_F(CudaElementwise, NothingIsWrittenForSlotsBelowZero) {
  for (const int head_dim : {6, 16}) {
    const PagedWorld world({4, 2, head_dim, 4, DType::kBF16}, {{0, 3}}, 8);
    const Roped got = RopeOnDevice(world, {-1, -1, -1}, 0);
    EXPECT_TRUE(got.keys == world.RowMajorKeys());
    EXPECT_TRUE(got.values == world.values());
  }
}

}  // namespace
}  // namespace lockstep::testing
