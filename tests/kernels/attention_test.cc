// RopeAndWriteKv and Attention against their twins, bit for bit, over paged caches with NaN
// wherever nothing was written.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/paged_world.h"

namespace lockstep::testing {
namespace {

using Shape = PagedShape;
using Chunk = SequenceChunk;

// A decode, a first chunk, a later chunk that crosses a split's border, a decode right at one.
const std::vector<Chunk> kMixed = {{5, 1}, {0, 9}, {120, 21}, {127, 1}, {128, 1}, {0, 1}};

class AttentionTest : public KernelTest {
 protected:
  void ExpectTwin(const Shape& shape, const std::vector<Chunk>& chunks, int num_threads = 1) {
    PagedWorld world(shape, chunks, 42);
    const auto body = Body(num_threads);
    const auto [qkv, cache] = world.Rope(*body);
    const auto [want_qkv, want_cache] = world.Rope(*reference_);
    const std::string what =
        "heads " + std::to_string(shape.num_heads) + "/" + std::to_string(shape.num_kv_heads) +
        " head_dim " + std::to_string(shape.head_dim) + " block " +
        std::to_string(shape.block_size) + " " + std::string(DTypeName(shape.dtype));
    ASSERT_TRUE(SameBits(qkv, want_qkv)) << what;
    ASSERT_TRUE(cache == want_cache) << what;
    world.WriteBatch();
    const std::vector<float> want = world.Attend(*reference_);
    for (const float x : want)
      ASSERT_TRUE(std::isfinite(x)) << "the reference read what was never written";
    ASSERT_TRUE(SameBits(world.Attend(*body), want)) << what;
  }
};

TEST_P(AttentionTest, EqualsTwinForEveryGroupSize) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int group : {1, 2, 3, 4, 7, 8, 13, 64}) {
      ExpectTwin({group * (group < 8 ? 2 : 1), group < 8 ? 2 : 1, 16, 4, dtype},
                 {{0, 5}, {30, 1}, {126, 5}});
    }
  }
}

TEST_P(AttentionTest, EqualsTwinForEveryHeadSize) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int head_dim : {2, 6, 8, 10, 14, 16, 18, 32, 34, 64, 80, 128}) {
      ExpectTwin({4, 2, head_dim, 4, dtype}, {{0, 5}, {30, 1}, {125, 7}});
    }
  }
}

TEST_P(AttentionTest, EqualsTwinForEveryBlockSize) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int block_size : {1, 3, 4, 16, 48, 128, 256})
      ExpectTwin({4, 2, 16, block_size, dtype}, kMixed);
  }
}

TEST_P(AttentionTest, EqualsTwinAroundEverySplitBorder) {
  for (const int context :
       {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 127, 128, 129, 255, 256, 257, 384, 500}) {
    ExpectTwin({2, 1, 8, 16, DType::kF32}, {{context - 1, 1}, {context, 3}});
  }
}

TEST_P(AttentionTest, EqualsTwinForChunksOfEveryLength) {
  for (const int chunk : {1, 2, 11, 12, 13, 47, 48, 49, 97})
    ExpectTwin({4, 2, 8, 16, DType::kF32}, {{3, chunk}});
}

TEST_P(AttentionTest, EqualsTwinOnAnyNumberOfThreads) {
  for (const int num_threads : {2, 3, 8}) {
    ExpectTwin({4, 2, 16, 4, DType::kF32}, kMixed, num_threads);
    ExpectTwin({2, 1, 16, 4, DType::kBF16}, {{1000, 1}}, num_threads);  // divided by splits
    ExpectTwin({2, 1, 16, 4, DType::kF32}, {{900, 2}, {3, 1}, {0, 4}},
               num_threads);  // one of several is
  }
}

TEST_P(AttentionTest, TokensDoNotDependOnTheirBatch) {
  PagedWorld world({4, 2, 16, 4, DType::kF32}, kMixed, 43);
  world.WriteBatch();
  const auto body = Body(2);
  const std::vector<float> all = world.Attend(*body);
  for (int64_t token = 0; token < world.batch().num_tokens; ++token) {
    const std::vector<float> want(all.begin() + token * world.out_width(),
                                  all.begin() + (token + 1) * world.out_width());
    ASSERT_TRUE(SameBits(world.AttendAlone(*body, token), want)) << "token " << token;
  }
}

// A later token's infinite value must not reach an earlier one through a weight of zero.
TEST_P(AttentionTest, LaterTokensLeaveNoTraceInEarlierOnes) {
  const Shape shape = {2, 1, 8, 4, DType::kF32};
  PagedWorld world(shape, {{2, 6}}, 44);
  const int64_t last = 5 * world.width();
  for (int d = 0; d < shape.head_dim; ++d) {
    world.qkv()[last + (shape.num_heads + 1) * shape.head_dim + d] =
        std::numeric_limits<float>::infinity();
  }
  world.WriteBatch();
  const std::vector<float> got = world.Attend(*Body());
  ASSERT_TRUE(SameBits(got, world.Attend(*reference_)));
  for (int64_t i = 0; i < 5 * world.out_width(); ++i) ASSERT_TRUE(std::isfinite(got[i]));
  EXPECT_TRUE(std::isinf(got.back()));
}

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  PagedWorld world({2, 1, 8, 4, DType::kF32}, {{140, 3}}, 45);
  for (float& x : world.qkv()) x *= 100.0f;
  world.WriteBatch();
  const std::vector<float> want = world.Attend(*reference_);
  for (const float x : want) ASSERT_TRUE(std::isfinite(x));
  EXPECT_TRUE(SameBits(world.Attend(*Body()), want));
}

INSTANTIATE_TEST_SUITE_P(Isa, AttentionTest, ::testing::ValuesIn(KernelsUnderTest()), KernelsName);

// The twin itself against the textbook formula in double precision.
TEST(ReferenceAttention, IsSoftmaxOfScaledScoresTimesValues) {
  constexpr int kDim = 4;
  const std::vector<float> k = {1, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0};
  const std::vector<float> v = {1, 2, 3, 4, 5, 6, 7, 8, -1, -2, -3, -4};
  std::vector<float> keys(k), values(v);
  const KvCacheView cache = {keys.data(), values.data(), DType::kF32, 3, 1, 1, kDim};
  const std::vector<float> qkv = {2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  const int32_t position = 2, starts[] = {0, 1}, len = 3, blocks[] = {0, 1, 2};
  const int64_t slot = 2;
  const BatchIndex batch = {1, 1, 3, &position, &slot, starts, &len, blocks};
  std::vector<float> out(kDim);
  MakeReferenceBackend()->Attention({qkv.data(), 1, 0.5f, &batch, &cache, out.data()});
  const double weights[] = {std::exp(1.0), std::exp(0.5), std::exp(1.5)};
  const double sum = weights[0] + weights[1] + weights[2];
  for (int d = 0; d < kDim; ++d) {
    const double want = (weights[0] * v[d] + weights[1] * v[4 + d] + weights[2] * v[8 + d]) / sum;
    EXPECT_NEAR(out[d], want, 1e-5);
  }
}

}  // namespace
}  // namespace lockstep::testing
