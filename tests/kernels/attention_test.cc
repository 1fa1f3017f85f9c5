// RopeAndWriteKv and Attention against their twins, bit for bit, over paged caches with NaN
// wherever nothing was written.
#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/kernels/kernel_fixture.h"

namespace lockstep::testing {
namespace {

struct Shape {
  int num_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 16;
  int block_size = 4;
  DType dtype = DType::kF32;
};

// Tokens of one sequence in the batch: `computed` are in the cache already, `chunk` are new.
struct Chunk {
  int computed;
  int chunk;
};

// A cache with shuffled blocks and, per sequence, a context written by the reference backend.
class PagedWorld {
 public:
  PagedWorld(const Shape& shape, const std::vector<Chunk>& chunks, uint32_t seed)
      : shape_(shape), chunks_(chunks), random_(seed) {
    int num_blocks = 3;  // some that nobody owns
    for (const Chunk& c : chunks) {
      const int blocks = (c.computed + c.chunk + shape.block_size - 1) / shape.block_size;
      max_blocks_ = std::max(max_blocks_, blocks);
      num_blocks += blocks;
    }
    const size_t elements =
        size_t(num_blocks) * shape.num_kv_heads * shape.block_size * shape.head_dim;
    k_.assign(elements * DTypeBytes(shape.dtype), 0xff);  // all ones is a NaN in either type
    v_ = k_;
    cache_ = {k_.data(),          v_.data(),        shape.dtype,   num_blocks,
              shape.num_kv_heads, shape.block_size, shape.head_dim};
    ShuffleBlocks(num_blocks);
    MakeBatch();
    MakeTables();
    FillContext();
  }

  const BatchIndex& batch() const { return batch_; }
  const KvCacheView& cache() const { return cache_; }
  std::vector<float>& qkv() { return qkv_; }
  int64_t width() const {
    return int64_t{shape_.num_heads + 2 * shape_.num_kv_heads} * shape_.head_dim;
  }
  int64_t out_width() const { return int64_t{shape_.num_heads} * shape_.head_dim; }

  // Rotates, writes the cache; gives qkv and the cache's bytes.
  std::pair<std::vector<float>, std::vector<uint8_t>> Rope(Backend& backend) {
    std::vector<uint8_t> k = k_;
    std::vector<uint8_t> v = v_;
    KvCacheView cache = cache_;
    cache.k = k.data();
    cache.v = v.data();
    Padded qkv(qkv_);
    backend.RopeAndWriteKv(
        {qkv.data(), shape_.num_heads, cos_.data(), sin_.data(), &batch_, &cache});
    qkv.ExpectEdgesUntouched();
    k.insert(k.end(), v.begin(), v.end());
    return {qkv.values(), k};
  }

  // The batch's new tokens into the cache, so that attention can follow.
  void WriteBatch() {
    const auto reference = MakeReferenceBackend();
    reference->RopeAndWriteKv(
        {qkv_.data(), shape_.num_heads, cos_.data(), sin_.data(), &batch_, &cache_});
  }

  std::vector<float> Attend(Backend& backend) const {
    Padded qkv(qkv_);
    Padded out(batch_.num_tokens * out_width());
    const float scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    backend.Attention({qkv.data(), shape_.num_heads, scale, &batch_, &cache_, out.data()});
    out.ExpectEdgesUntouched();
    return out.values();
  }

  // A batch of one token of this world, sharing its cache.
  std::vector<float> AttendAlone(Backend& backend, int64_t token) const {
    const int64_t seq =
        std::upper_bound(starts_.begin(), starts_.end(), token) - starts_.begin() - 1;
    const std::vector<int32_t> starts = {0, 1};
    const std::vector<int32_t> lens = {positions_[token] + 1};
    BatchIndex batch = {1,
                        1,
                        max_blocks_,
                        &positions_[token],
                        &slots_[token],
                        starts.data(),
                        lens.data(),
                        blocks_.data() + seq * max_blocks_};
    std::vector<float> out(out_width());
    const float scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    backend.Attention(
        {qkv_.data() + token * width(), shape_.num_heads, scale, &batch, &cache_, out.data()});
    return out;
  }

 private:
  void ShuffleBlocks(int num_blocks) {
    std::vector<int32_t> free(num_blocks);
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), random_.engine());
    blocks_.assign(chunks_.size() * max_blocks_,
                   -1);  // reading one that is not there would be out of bounds
    size_t used = 0;
    for (size_t s = 0; s < chunks_.size(); ++s) {
      const int tokens = chunks_[s].computed + chunks_[s].chunk;
      for (int b = 0; b * shape_.block_size < tokens; ++b)
        blocks_[s * max_blocks_ + b] = free[used++];
    }
  }

  int64_t SlotOf(size_t seq, int position) const {
    return int64_t{blocks_[seq * max_blocks_ + position / shape_.block_size]} * shape_.block_size +
           position % shape_.block_size;
  }

  void MakeBatch() {
    starts_.push_back(0);
    for (size_t s = 0; s < chunks_.size(); ++s) {
      for (int i = 0; i < chunks_[s].chunk; ++i) {
        positions_.push_back(chunks_[s].computed + i);
        slots_.push_back(SlotOf(s, chunks_[s].computed + i));
      }
      starts_.push_back(static_cast<int32_t>(positions_.size()));
      lens_.push_back(chunks_[s].computed + chunks_[s].chunk);
    }
    batch_ = {static_cast<int64_t>(positions_.size()),
              static_cast<int64_t>(chunks_.size()),
              max_blocks_,
              positions_.data(),
              slots_.data(),
              starts_.data(),
              lens_.data(),
              blocks_.data()};
    qkv_ = random_.Normals(batch_.num_tokens * width());
    for (float& x : qkv_) x *= 1.5f;  // sharper scores
  }

  void MakeTables() {
    const int half = shape_.head_dim / 2;
    const int max_positions = *std::max_element(lens_.begin(), lens_.end());
    for (int p = 0; p < max_positions; ++p) {
      for (int i = 0; i < half; ++i) {
        cos_.push_back(std::cos(0.1f * static_cast<float>(p + i)));
        sin_.push_back(std::sin(0.1f * static_cast<float>(p + i)));
      }
    }
  }

  void FillContext() {
    const auto reference = MakeReferenceBackend();
    for (size_t s = 0; s < chunks_.size(); ++s) {
      for (int p = 0; p < chunks_[s].computed; ++p) {
        std::vector<float> qkv = random_.Normals(width());
        const int32_t position = p;
        const int64_t slot = SlotOf(s, p);
        BatchIndex one;
        one.num_tokens = 1;
        one.positions = &position;
        one.slot_mapping = &slot;
        reference->RopeAndWriteKv(
            {qkv.data(), shape_.num_heads, cos_.data(), sin_.data(), &one, &cache_});
      }
    }
  }

  Shape shape_;
  std::vector<Chunk> chunks_;
  Random random_;
  int max_blocks_ = 0;
  std::vector<uint8_t> k_;
  std::vector<uint8_t> v_;
  KvCacheView cache_;
  std::vector<int32_t> blocks_;
  std::vector<int32_t> positions_;
  std::vector<int64_t> slots_;
  std::vector<int32_t> starts_;
  std::vector<int32_t> lens_;
  BatchIndex batch_;
  std::vector<float> qkv_;
  std::vector<float> cos_;
  std::vector<float> sin_;
};

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
