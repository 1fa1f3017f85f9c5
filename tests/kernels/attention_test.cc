// RopeAndWriteKv and Attention against their twins, bit for bit, over paged caches with NaN
// wherever nothing was written.
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/cpu_backend_options.h"
#include "tests/kernels/paged_world.h"

namespace lockstep::testing {
namespace {

using Shape = PagedShape;
using Chunk = SequenceChunk;

// A decode, a first chunk, a later chunk that crosses a split's border, a decode right at one.
const std::vector<Chunk> kMixed = {{5, 1}, {0, 9}, {120, 21}, {127, 1}, {128, 1}, {0, 1}};

constexpr DType kCacheDTypes[] = {DType::kF32, DType::kBF16, DType::kE4M3};

class AttentionTest : public KernelTest {
 protected:
  void ExpectTwin(const Shape& shape, const std::vector<Chunk>& chunks, int num_threads = 1) {
    std::string name =
        absl::StrFormat("heads %d/%d head_dim %d block %d %s", shape.num_heads, shape.num_kv_heads,
                        shape.head_dim, shape.block_size, DTypeName(shape.dtype));
    if (shape.has_bias) name += " bias";
    if (shape.has_norms) name += " norms";
    absl::StrAppend(&name, " scales ", shape.k_scale, " ", shape.v_scale);
    for (const Chunk& c : chunks) absl::StrAppend(&name, " ", c.computed, "+", c.chunk);
    const Twin& twin = OncePerCase(name, [&] { return MakeTwin(shape, chunks); });
    const auto body = Body(num_threads);
    const auto [qkv, cache] = twin.unwritten.Rope(*body);
    ASSERT_TRUE(SameBits(qkv, twin.qkv)) << name;
    ASSERT_TRUE(cache == twin.cache) << name;
    for (const float x : twin.out)
      ASSERT_TRUE(std::isfinite(x)) << "the reference read what was never written";
    ASSERT_TRUE(SameBits(twin.written.Attend(*body), twin.out)) << name;
  }

 private:
  // A world before and after its batch was written, and what the reference makes of either.
  struct Twin {
    PagedWorld unwritten;
    PagedWorld written;
    std::vector<float> qkv;
    std::vector<uint8_t> cache;
    std::vector<float> out;
  };
  Twin MakeTwin(const Shape& shape, const std::vector<Chunk>& chunks) {
    PagedWorld unwritten(shape, chunks, 42);
    PagedWorld written(shape, chunks, 42);
    written.WriteBatch();
    auto [qkv, cache] = unwritten.Rope(*reference_);
    std::vector<float> out = written.Attend(*reference_);
    return {std::move(unwritten), std::move(written), std::move(qkv), std::move(cache),
            std::move(out)};
  }
};

TEST_P(AttentionTest, EqualsTwinForEveryGroupSize) {
  for (const DType dtype : kCacheDTypes) {
    for (const int group : {1, 2, 3, 4, 7, 8, 13, 64}) {
      ExpectTwin({group * (group < 8 ? 2 : 1), group < 8 ? 2 : 1, 16, 4, dtype},
                 {{0, 5}, {30, 1}, {126, 5}});
    }
  }
}

TEST_P(AttentionTest, EqualsTwinForEveryHeadSize) {
  for (const DType dtype : kCacheDTypes) {
    for (const int head_dim : {2, 6, 8, 10, 14, 16, 18, 32, 34, 64, 80, 128}) {
      ExpectTwin({4, 2, head_dim, 4, dtype}, {{0, 5}, {30, 1}, {125, 7}});
    }
  }
}

// As Qwen2 and Qwen3 have them, and both together.
TEST_P(AttentionTest, EqualsTwinWhereHeadsAreAdjusted) {
  for (const DType dtype : kCacheDTypes) {
    for (const int head_dim : {2, 6, 16, 34, 64, 128}) {
      for (const auto& [has_bias, has_norms] :
           {std::pair{true, false}, std::pair{false, true}, std::pair{true, true}}) {
        ExpectTwin({4, 2, head_dim, 4, dtype, has_bias, has_norms}, {{0, 5}, {30, 1}, {125, 7}});
      }
    }
  }
}

TEST_P(AttentionTest, EqualsTwinByScales) {
  for (const float k_scale : {0.0371f, 3.0f}) {
    Shape shape = {4, 2, 34, 16, DType::kE4M3};
    shape.k_scale = k_scale;
    shape.v_scale = 1.0f / k_scale;
    ExpectTwin(shape, kMixed);
  }
}

TEST_P(AttentionTest, EqualsTwinForEveryBlockSize) {
  for (const DType dtype : kCacheDTypes) {
    for (const int block_size : {1, 3, 4, 16, 48, 128, 256})
      ExpectTwin({4, 2, 16, block_size, dtype}, kMixed);
  }
}

TEST_P(AttentionTest, EqualsTwinAroundEverySplitBorder) {
  for (const int context :
       {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 127, 128, 129, 255, 256, 257, 384, 500}) {
    for (const DType dtype : kCacheDTypes)
      ExpectTwin({2, 1, 8, 16, dtype}, {{context - 1, 1}, {context, 3}});
  }
}

TEST_P(AttentionTest, EqualsTwinForChunksOfEveryLength) {
  for (const int chunk : {1, 2, 11, 12, 13, 47, 48, 49, 97}) {
    ExpectTwin({4, 2, 8, 16, DType::kF32}, {{3, chunk}});
    ExpectTwin({4, 2, 66, 16, DType::kBF16}, {{3, chunk}});  // ends of pairs in wide tiles, too
    ExpectTwin({4, 2, 66, 16, DType::kE4M3}, {{3, chunk}});
  }
}

TEST_P(AttentionTest, EqualsTwinOnAnyNumberOfThreads) {
  for (const int num_threads : {2, 3, 8}) {
    ExpectTwin({4, 2, 16, 4, DType::kF32}, kMixed, num_threads);
    for (const DType dtype : kCacheDTypes)
      ExpectTwin({2, 1, 16, 4, dtype}, {{1000, 1}}, num_threads);  // divided by splits
    ExpectTwin({2, 1, 16, 4, DType::kF32}, {{900, 2}, {3, 1}, {0, 4}},
               num_threads);  // one of several is
  }
}

// Few rows take several KV heads at a time, as many as threads and rows leave.
TEST_P(AttentionTest, EqualsTwinForEveryNumberOfKvHeads) {
  for (const int num_kv_heads : {1, 3, 8, 50}) {
    for (const int num_threads : {1, 2}) {
      for (const DType dtype : {DType::kBF16, DType::kE4M3}) {
        ExpectTwin({2 * num_kv_heads, num_kv_heads, 8, 16, dtype}, {{400, 1}, {130, 5}, {7, 1}},
                   num_threads);
      }
    }
  }
}

TEST_P(AttentionTest, TokensDoNotDependOnTheirBatch) {
  for (const DType dtype : kCacheDTypes) {
    PagedWorld world({4, 2, 16, 4, dtype}, kMixed, 43);
    world.WriteBatch();
    const auto body = Body(2);
    const std::vector<float> all = world.Attend(*body);
    for (int64_t token = 0; token < world.batch().num_tokens; ++token) {
      const std::vector<float> want(all.begin() + token * world.out_width(),
                                    all.begin() + (token + 1) * world.out_width());
      ASSERT_TRUE(SameBits(world.AttendAlone(*body, token), want)) << "token " << token;
    }
  }
}

// A later token's infinite value must not reach an earlier one through a weight of zero.
TEST_P(AttentionTest, LaterTokensLeaveNoTraceInEarlierOnes) {
  for (const DType dtype : kCacheDTypes) {
    for (const int num_tokens : {5, 6}) {
      const Shape shape = {2, 1, 8, 4, dtype};
      PagedWorld world(shape, {{2, num_tokens}}, 44);
      const int64_t last = (num_tokens - 1) * world.width();
      for (int d = 0; d < shape.head_dim; ++d) {
        world.qkv()[last + (shape.num_heads + 1) * shape.head_dim + d] =
            std::numeric_limits<float>::infinity();
      }
      world.WriteBatch();
      const std::vector<float> got = world.Attend(*Body());
      ASSERT_TRUE(SameBits(got, world.Attend(*reference_)));
      for (int64_t i = 0; i < (num_tokens - 1) * world.out_width(); ++i)
        ASSERT_TRUE(std::isfinite(got[i]));
      EXPECT_EQ(std::isinf(got.back()), dtype != DType::kE4M3);  // of which 448 is the largest
    }
  }
}

// As the instructions that multiply bf16 do, and only there.
TEST_P(AttentionTest, DenormalsCountAsZeroOverBf16) {
  for (const DType dtype : kCacheDTypes) {
    PagedWorld world({4, 2, 34, 16, dtype}, {{0, 140}}, 46);
    for (float& x : world.qkv()) x *= 1e-39f;
    world.WriteBatch();
    const std::vector<float> got = world.Attend(*Body());
    ASSERT_TRUE(SameBits(got, world.Attend(*reference_)));
    bool all_zero = true;
    for (const float x : got) all_zero = all_zero && x == 0.0f;
    EXPECT_EQ(all_zero, dtype != DType::kF32);
  }
}

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  for (const DType dtype : kCacheDTypes) {
    PagedWorld world({2, 1, 8, 4, dtype}, {{140, 3}}, 45);
    for (float& x : world.qkv()) x *= 100.0f;
    world.WriteBatch();
    const std::vector<float> want = world.Attend(*reference_);
    for (const float x : want) ASSERT_TRUE(std::isfinite(x));
    EXPECT_TRUE(SameBits(world.Attend(*Body()), want));
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, AttentionTest, ::testing::ValuesIn(FloatKernelsUnderTest()),
                         KernelsName);

// The twin itself against the textbook formula in double precision.
TEST(ReferenceAttention, IsSoftmaxOfScaledScoresTimesValues) {
  constexpr int kDim = 4;
  const std::vector<float> k = {1, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0};
  const std::vector<float> v = {1, 2, 3, 4, 5, 6, 7, 8, -1, -2, -3, -4};
  const std::vector<float> qkv = {2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  const int32_t position = 2, starts[] = {0, 1}, len = 3, blocks[] = {0, 1, 2};
  const int64_t slot = 2;
  const int32_t row = 0;
  const BatchIndex batch = {1, 1, &position, &slot, starts, &len, &row, blocks, 3};
  const double weights[] = {std::exp(1.0), std::exp(0.5), std::exp(1.5)};
  const double sum = weights[0] + weights[1] + weights[2];
  std::vector<BF16> short_k, short_v;  // exact
  std::vector<E4M3> byte_k, byte_v;    // likewise
  for (const float x : k) short_k.push_back(ToBF16(x));
  for (const float x : v) short_v.push_back(ToBF16(x));
  for (const float x : k) byte_k.push_back(ToE4M3(x / 4));
  for (const float x : v) byte_v.push_back(ToE4M3(x * 2));
  std::vector<float> long_k = k, long_v = v;
  const KvCacheView exact = {long_k.data(), long_v.data(), DType::kF32, 3, 1, 1, kDim};
  const KvCacheView rounding = {short_k.data(), short_v.data(), DType::kBF16, 3, 1, 1, kDim};
  const KvCacheView scaled = {byte_k.data(), byte_v.data(), DType::kE4M3, 3, 1, 1,
                              kDim,          4.0f,          0.5f};
  for (const KvCacheView& cache : {exact, rounding, scaled}) {
    std::vector<float> out(kDim);
    MakeReferenceBackend()->Attention({qkv.data(), 1, 0.5f, &batch, &cache, out.data()});
    for (int d = 0; d < kDim; ++d) {
      const double want = (weights[0] * v[d] + weights[1] * v[4 + d] + weights[2] * v[8 + d]) / sum;
      EXPECT_NEAR(out[d], want, cache.dtype == DType::kF32 ? 1e-5 : 8 * 0x1p-9);
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
