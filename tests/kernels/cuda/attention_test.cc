// The CUDA attention kernels against the reference backend, over paged caches with NaN wherever
// nothing was written and a workspace of NaN.
#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <vector>

#include "kernels/host_rows.h"
#include "tests/kernels/cuda/attention_on_device.h"
#ifdef LOCKSTEP_CUDA_EMULATION
#include "kernels/cpu_backend_options.h"
#include "tests/support/cuda_emulation/emulation.h"
#endif

namespace lockstep::testing {
namespace {

using Options = AttentionOnDevice::Options;

// A decode, a first chunk, a later chunk over a tile's border, decodes right at one.
const std::vector<SequenceChunk> kMixed = {{5, 1}, {0, 9}, {120, 21}, {127, 1}, {128, 1}, {0, 1}};
const std::vector<SequenceChunk> kShort = {{0, 5}, {30, 1}, {126, 5}};

// A world ready for attention; its queries are numbers of the type that the matrix instructions
// take over such a cache, so that the reference computes the same but for its exact weights. (Of
// e4m3 caches, which are multiplied as bf16 or f16, it is bf16, all whose numbers here f16 has.)
PagedWorld Ready(const PagedShape& shape, const std::vector<SequenceChunk>& chunks) {
  PagedWorld world(shape, chunks, 42);
  world.WriteBatch();
  world.qkv() = RoundedTo(shape.dtype == DType::kE4M3 ? DType::kBF16 : shape.dtype, world.qkv());
  return world;
}

std::string Name(const PagedShape& shape, int64_t split_tokens) {
  return "heads " + std::to_string(shape.num_heads) + "/" + std::to_string(shape.num_kv_heads) +
         " head_dim " + std::to_string(shape.head_dim) + " block " +
         std::to_string(shape.block_size) + " " + std::string(DTypeName(shape.dtype)) +
         " splits of " + std::to_string(split_tokens);
}

// The cache's elements, as they lie.
std::vector<float> Numbers(const std::vector<uint8_t>& bytes, DType dtype) {
  std::vector<float> numbers(bytes.size() / DTypeBytes(dtype));
  WidenRow(bytes.data(), dtype, std::ssize(numbers), numbers.data());
  return numbers;
}

// The reference, over bf16 and e4m3 caches over the same numbers in f32: there it rounds no
// weights, either.
std::vector<float> Exact(const PagedWorld& world) {
  const auto reference = MakeReferenceBackend();
  const DType dtype = world.shape().dtype;
  if (dtype == DType::kF32 || dtype == DType::kF16) return world.Attend(*reference);
  const std::vector<float> keys = Numbers(world.RowMajorKeys(), dtype);
  std::vector<float> v = Numbers(world.values(), dtype);
  const int64_t row = world.shape().head_dim;
  const int64_t rows = world.shape().block_size;
  std::vector<float> k(keys.size());
  for (int64_t i = 0; i < std::ssize(k); ++i) {
    const int64_t block = i / (rows * row) * (rows * row);
    k[block + i % row * rows + (i - block) / row] = keys[i];
  }
  KvCacheView cache = world.cache();
  cache.k = k.data();
  cache.v = v.data();
  cache.dtype = DType::kF32;
  std::vector<float> out(world.batch().num_tokens * world.out_width());
  reference->Attention({world.qkv().data(), world.shape().num_heads, world.scale(), &world.batch(),
                        &cache, out.data()});
  return out;
}

// f32: an order of additions. bf16: weights are rounded to 8 bits, each by up to 2^-9 of itself,
// and so is their sum's length; where values cancel, more of what is left. f16: 11 bits.
double Tolerance(DType dtype) {
  if (dtype == DType::kF32) return 1e-5;
  return dtype == DType::kF16 ? 1.25e-3 : 1e-2;
}

// Which kernel works on chunks.
struct Kernel {
  DType dtype;
  bool wgmma = false;
  DType out_dtype = DType::kF32;  // kF16: e4m3 is multiplied as that, else as bf16

  // Results are rounded to f16 once more.
  double tolerance() const {
    return out_dtype == DType::kF16 ? Tolerance(DType::kF16) + 0x1p-11 : Tolerance(dtype);
  }
  std::string name() const {
    return std::string(DTypeName(dtype)) + (wgmma ? "_wgmma" : "") +
           (out_dtype == DType::kF16 ? "_as_f16" : "");
  }
};
constexpr Kernel kE4m3 = {DType::kE4M3};
constexpr Kernel kE4m3AsF16 = {DType::kE4M3, false, DType::kF16};

class CudaAttention : public ::testing::TestWithParam<Kernel> {
 protected:
  void SetUp() override {
    if (GetParam().wgmma && AttentionOnDevice::Encoder() == nullptr)
      GTEST_SKIP() << "no wgmma here";
  }

  // Those nearest to what is asked for that the kernel takes.
  static PagedShape Shape(int num_heads, int num_kv_heads, int head_dim, int block_size) {
    if (GetParam().wgmma) {
      head_dim = head_dim <= 64 ? 64 : 128;
      block_size = std::clamp<int>(std::bit_floor(static_cast<unsigned>(block_size)), 8, 64);
    }
    if (GetParam().dtype == DType::kE4M3) head_dim = (head_dim + 15) / 16 * 16;
    return {num_heads, num_kv_heads, head_dim, block_size, GetParam().dtype};
  }
  static Options In(int64_t split_tokens) {
    return {
        .split_tokens = split_tokens, .out_dtype = GetParam().out_dtype, .wgmma = GetParam().wgmma};
  }

  // Of other tiles: the same bits, but where decodes are mma.sync's in one and wgmma's in the
  // other, whose sums nothing says are rounded alike.
  static ::testing::AssertionResult SameInTiles(const std::vector<float>& got,
                                                const std::vector<float>& want, int64_t head_dim) {
    const Kernel& kernel = GetParam();
    return kernel.wgmma ? RowsNear(got, want, head_dim, kernel.tolerance()) : SameBits(got, want);
  }

  void ExpectTwin(const PagedShape& shape, const std::vector<SequenceChunk>& chunks,
                  const std::vector<int64_t>& splits = {64, 1024}) {
    const PagedWorld world = Ready(shape, chunks);
    const AttentionOnDevice device(world);
    const std::vector<float> want = Exact(world);
    for (const int64_t split_tokens : splits) {
      const std::vector<float> got = device.Attend(In(split_tokens));
      ASSERT_TRUE(RowsNear(got, want, shape.head_dim, GetParam().tolerance()))
          << Name(shape, split_tokens);
    }
  }
};

TEST_P(CudaAttention, IsNearItsTwinForEveryGroupSize) {
  for (const int group : {1, 2, 3, 4, 7, 8, 13, 16, 64}) {
    const int num_kv_heads = group < 8 ? 2 : 1;
    ExpectTwin(Shape(group * num_kv_heads, num_kv_heads, 16, 4), kShort);
  }
}

#ifdef LOCKSTEP_CUDA_EMULATION
TEST_P(CudaAttention, FitsGpusWithTheLeastSharedMemory) {
  if (GetParam().wgmma) GTEST_SKIP() << "for Hopper";
  const cuda_emulation::Device usual = cuda_emulation::PretendedDevice();
  cuda_emulation::SetDevice({.compute_major = 8, .compute_minor = 9});
  for (const int head_dim : {32, 64, 128}) {
    ExpectTwin(Shape(4, 2, head_dim, 4), {{5, 1}, {300, 1}});  // decodes
    ExpectTwin(Shape(4, 2, head_dim, 4), kShort);
  }
  cuda_emulation::SetDevice(usual);
}
#endif

TEST_P(CudaAttention, IsNearItsTwinForEveryHeadSize) {
  for (const int head_dim : {2, 6, 8, 16, 18, 24, 32, 34, 40, 64, 80, 96, 128, 130, 256}) {
    if (!cuda::AttentionSupports(GetParam().dtype, head_dim)) continue;
    if (GetParam().wgmma && head_dim % 64 != 0) continue;
    ExpectTwin(Shape(4, 2, head_dim, 4), kShort);
  }
}

TEST_P(CudaAttention, IsNearItsTwinByScales) {
  if (GetParam().dtype != DType::kE4M3) GTEST_SKIP() << "of e4m3 caches alone";
  PagedShape shape = Shape(4, 2, 16, 4);
  shape.k_scale = 0.0371f;
  shape.v_scale = 3.0f;
  ExpectTwin(shape, kMixed);
}

TEST_P(CudaAttention, IsNearItsTwinForEveryBlockSize) {
  for (const int block_size : {1, 3, 4, 16, 48, 128, 256}) {
    ExpectTwin(Shape(4, 2, 16, block_size), kMixed);
  }
}

TEST_P(CudaAttention, IsNearItsTwinAroundEveryBorder) {
  for (const int context : {1, 2, 7, 8, 15, 16, 17, 63, 64, 65, 127, 128, 129, 192, 257}) {
    ExpectTwin(Shape(2, 1, 8, 16), {{context - 1, 1}, {context, 3}}, {64, 128, 192, 1024});
  }
}

TEST_P(CudaAttention, IsNearItsTwinForChunksOfEveryLength) {
  for (const int chunk : {1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 130}) {
    ExpectTwin(Shape(4, 2, 8, 16), {{3, chunk}});
    ExpectTwin(Shape(2, 2, 8, 16), {{70, chunk}, {0, chunk}});
  }
}

TEST_P(CudaAttention, IsNearItsTwinInManySplits) {
  ExpectTwin(Shape(4, 2, 16, 16), {{1100, 1}, {64, 1}}, {64, 128});
  ExpectTwin(Shape(4, 2, 16, 16), {{1100, 3}, {64, 2}}, {64, 128});
  ExpectTwin(Shape(4, 2, 16, 16), {{700, 70}}, {704});  // all rows of a block
}

// As products of longer steps leave them.
TEST_P(CudaAttention, RoundedQueriesAreTheirNumbers) {
  for (const auto& chunks : {kMixed, {{5, 1}, {300, 1}}}) {
    for (const int head_dim : {40, 64}) {
      PagedWorld world = Ready(Shape(4, 2, head_dim, 4), chunks);
      world.qkv() = RoundedTo(DType::kBF16, world.qkv());
      const AttentionOnDevice device(world);
      Options options = In(128);
      const std::vector<float> want = device.Attend(options);
      options.rounded_qkv = true;
      EXPECT_TRUE(SameBits(device.Attend(options), want)) << head_dim;
    }
  }
}

TEST_P(CudaAttention, NarrowOutputIsTheRoundedOne) {
  for (const int64_t split_tokens : {64, 1024}) {
    const PagedWorld world = Ready(Shape(4, 2, 40, 4), kMixed);
    const AttentionOnDevice device(world);
    Options options = In(split_tokens);
    options.out_dtype = DType::kF32;
    const std::vector<float> exact = device.Attend(options);
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      const bool is_multiplied_so = GetParam().dtype == DType::kE4M3 && dtype == DType::kF16;
      if (is_multiplied_so) continue;  // exact is of bf16
      options.out_dtype = dtype;
      EXPECT_TRUE(SameBits(device.Attend(options), RoundedTo(dtype, exact))) << DTypeName(dtype);
    }
  }
}

// What a token gets: the same bits alone, where 16 rows are worked on at a time, and in a batch of
// chunks, where 128 are.
TEST_P(CudaAttention, TokensDoNotDependOnTheirBatch) {
  for (const PagedShape& shape : {Shape(4, 2, 16, 4), Shape(13, 1, 64, 16), Shape(20, 1, 128, 3)}) {
    const PagedWorld world = Ready(shape, {{5, 1}, {0, 9}, {120, 7}, {127, 1}, {700, 2}});
    const AttentionOnDevice device(world);
    for (const int64_t split_tokens : {64, 192, 1024}) {
      const Options options = In(split_tokens);
      const std::vector<float> all = device.Attend(options);
      Options alone = options;
      alone.decodes_as_chunks = options.wgmma;  // decodes are another kernel's
      const int step = options.wgmma ? 6 : 1;   // its blocks take an emulation long
      for (int64_t token = 0; token < world.batch().num_tokens; token += step) {
        const std::vector<float> want(all.begin() + token * world.out_width(),
                                      all.begin() + (token + 1) * world.out_width());
        const std::vector<float> qkv(world.qkv().begin() + token * world.width(),
                                     world.qkv().begin() + (token + 1) * world.width());
        ASSERT_TRUE(SameBits(device.Attend(world.Alone(token), qkv, alone), want))
            << Name(shape, split_tokens) << " token " << token;
      }
    }
  }
}

// In the splits that are best for a device: of few multiprocessors, and of so many that a split is
// a tile and most blocks have nothing to do.
TEST_P(CudaAttention, IsNearItsTwinInTheSplitsOfItsDevice) {
  for (const auto& chunks :
       {std::vector<SequenceChunk>{{5, 1}, {700, 1}, {64, 1}}, std::vector<SequenceChunk>{{800, 1}},
        std::vector<SequenceChunk>{{5, 1}, {0, 9}, {1000, 3}}}) {
    const PagedWorld world = Ready(Shape(8, 2, 64, 16), chunks);
    const AttentionOnDevice device(world);
    const std::vector<float> want = Exact(world);
    for (const int num_multiprocessors : {1, 4, 132}) {
      Options options = In(0);
      options.num_multiprocessors = num_multiprocessors;
      ASSERT_TRUE(
          RowsNear(device.Attend(options), want, world.shape().head_dim, GetParam().tolerance()))
          << chunks.size() << " sequences on " << num_multiprocessors;
    }
  }
}

TEST_P(CudaAttention, LittleWorkspaceTakesMoreLaunchesAndNothingElse) {
  // Of the last, launches end with a number of items, not only with their room.
  std::vector<SequenceChunk> one_chunk(9, {200, 1});
  one_chunk[0] = {160, 70};
  for (const auto& chunks :
       {std::vector<SequenceChunk>{{5, 1}, {0, 9}, {120, 40}, {200, 1}},
        std::vector<SequenceChunk>{{5, 1}, {200, 1}, {64, 1}, {150, 1}}, one_chunk}) {
    const PagedWorld world = Ready(Shape(4, 2, 16, 4), chunks);
    const AttentionOnDevice device(world);
    const std::vector<float> want = device.Attend(In(64));
    for (const int64_t splits : {4, 5, 7, 33}) {  // the longest has four
      for (const AttentionCut cut : {AttentionCut::kBest, AttentionCut::kOnce}) {
        Options options = In(64);
        options.workspace_splits = splits;
        options.cut = cut;
        EXPECT_TRUE(SameInTiles(device.Attend(options), want, world.shape().head_dim)) << splits;
      }
    }
  }
}

TEST_P(CudaAttention, DecodesInTilesOfAnySizeAreTheSame) {
  const PagedWorld world = Ready(Shape(14, 2, 32, 16), {{5, 1}, {63, 1}, {64, 1}, {300, 1}});
  const AttentionOnDevice device(world);
  for (const int64_t split_tokens : {64, 1024}) {
    Options options = In(split_tokens);
    const std::vector<float> want = device.Attend(options);
    options.decodes_as_chunks = true;
    EXPECT_TRUE(SameInTiles(device.Attend(options), want, world.shape().head_dim));
  }
}

// A graph is captured for more sequences than a batch may have: those left over have no context.
TEST_P(CudaAttention, SequencesWithoutContextAreLeftAlone) {
  const PagedWorld world = Ready(Shape(4, 2, 16, 4), {{5, 1}, {100, 1}, {150, 1}});
  const AttentionOnDevice device(world);
  for (const bool decodes_as_chunks : {false, true}) {
    Options options = In(64);
    options.decodes_as_chunks = decodes_as_chunks;
    const std::vector<float> want = device.Attend(options);
    FlatBatch batch = world.flat();
    std::vector<float> qkv = world.qkv();
    for (int i = 0; i < 2; ++i) {
      batch.positions.push_back(130);
      batch.slots.push_back(-1);
      batch.query_starts.push_back(batch.query_starts.back() + 1);
      batch.context_lens.push_back(0);
      batch.table_rows.push_back(0);  // somebody's
    }
    qkv.resize(qkv.size() + 2 * world.width(), std::numeric_limits<float>::quiet_NaN());
    std::vector<float> got = device.Attend(batch, qkv, options);
    for (size_t i = want.size(); i < got.size(); ++i) ASSERT_TRUE(std::isnan(got[i]));
    got.resize(want.size());
    EXPECT_TRUE(SameBits(got, want));
  }
}

TEST_P(CudaAttention, SequencesWithoutTokensAreSkipped) {
  const PagedWorld world = Ready(Shape(4, 2, 16, 4), {{5, 0}, {0, 9}, {7, 0}, {70, 3}, {9, 0}});
  const std::vector<float> got = AttentionOnDevice(world).Attend(In(64));
  EXPECT_TRUE(RowsNear(got, Exact(world), world.shape().head_dim, GetParam().tolerance()));
}

TEST_P(CudaAttention, LargeScoresDoNotOverflow) {
  PagedWorld world(Shape(2, 1, 8, 4), {{140, 3}}, 45);
  for (float& x : world.qkv()) x *= 100.0f;
  world.WriteBatch();
  for (const float x : AttentionOnDevice(world).Attend(In(64))) ASSERT_TRUE(std::isfinite(x));
}

// By the kernels of which a block walks several splits.
class CudaSplits : public CudaAttention {};

// One after the other by one block, or each by its own: what a step that repeats does, and one that
// does not, on devices of any size.
TEST_P(CudaSplits, WhoWalksASplitMakesNoDifference) {
  for (const auto& chunks : {std::vector<SequenceChunk>{{5, 1}, {0, 9}, {120, 40}, {400, 1}},
                             std::vector<SequenceChunk>{{5, 1}, {700, 1}, {64, 1}, {150, 1}}}) {
    const PagedWorld world = Ready(Shape(4, 2, 16, 4), chunks);
    const AttentionOnDevice device(world);
    Options options = In(64);
    options.cut = AttentionCut::kOnce;
    const std::vector<float> want = device.Attend(options);
    ASSERT_TRUE(RowsNear(want, Exact(world), world.shape().head_dim, GetParam().tolerance()));
    for (const AttentionCut cut : {AttentionCut::kBest, AttentionCut::kSplits}) {
      for (const int num_multiprocessors : {1, 3, 132}) {
        options.fixed_splits = true;
        options.cut = cut;
        options.num_multiprocessors = num_multiprocessors;
        EXPECT_TRUE(SameBits(device.Attend(options), want)) << num_multiprocessors;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cache, CudaAttention,
                         ::testing::Values(Kernel{DType::kF32}, Kernel{DType::kBF16},
                                           Kernel{DType::kBF16, true}, Kernel{DType::kF16},
                                           Kernel{DType::kF16, true}, kE4m3, kE4m3AsF16),
                         [](const auto& info) { return info.param.name(); });
INSTANTIATE_TEST_SUITE_P(Cache, CudaSplits,
                         ::testing::Values(Kernel{DType::kF32}, Kernel{DType::kBF16},
                                           Kernel{DType::kF16}, kE4m3, kE4m3AsF16),
                         [](const auto& info) { return info.param.name(); });

}  // namespace
}  // namespace lockstep::testing
