// What attention makes of each number that an e4m3 cache may hold, NaN above all.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/host_rows.h"
#include "tests/kernels/cuda/attention_on_device.h"

namespace lockstep::testing {
namespace {

constexpr int kWidth = 64;     // of a head
constexpr int kTogether = 16;  // elements that are widened together

// What the cache's numbers are multiplied as; and whether by the kernel for chunks.
struct E4m3Kernel {
  DType dtype;
  bool is_for_chunks;
};

class E4m3Attention : public ::testing::TestWithParam<E4m3Kernel> {
 protected:
  static PagedWorld World(int num_heads, const std::vector<SequenceChunk>& chunks) {
    PagedWorld world({num_heads, num_heads, kWidth, 4, DType::kE4M3}, chunks, 5);
    world.WriteBatch();
    return world;
  }
  static std::vector<float> Attend(const PagedWorld& world, const std::vector<uint8_t>& keys,
                                   const std::vector<uint8_t>& values) {
    return AttentionOnDevice(world, keys, values, DType::kE4M3)
        .Attend({.split_tokens = 1024,
                 .out_dtype = GetParam().dtype,
                 .decodes_as_chunks = GetParam().is_for_chunks});
  }
};

std::vector<uint8_t> Converted(const std::vector<uint8_t>& numbers, DType to) {
  std::vector<float> wide(numbers.size());
  WidenRow(numbers.data(), DType::kE4M3, std::ssize(wide), wide.data());
  std::vector<uint8_t> narrow(wide.size() * DTypeBytes(to));
  NarrowRow(wide.data(), std::ssize(wide), to, narrow.data());
  return narrow;
}

// Over all masks, splits and borders of tiles, whatever lies beyond a context's end.
TEST_P(E4m3Attention, IsThatOverAWiderCacheOfTheSameNumbers) {
  const DType wide = GetParam().dtype;
  for (const int head_dim : {16, 32, 48, 64, 96, 128}) {
    PagedWorld world({4, 2, head_dim, 4, DType::kE4M3},
                     {{5, 1}, {0, 9}, {120, 21}, {127, 1}, {128, 1}, {0, 1}}, 42);
    world.WriteBatch();
    const AttentionOnDevice device(world);
    const AttentionOnDevice wider(world, Converted(world.RowMajorKeys(), wide),
                                  Converted(world.values(), wide), wide);
    for (const int64_t split_tokens : {64, 1024}) {
      const AttentionOnDevice::Options options = {.split_tokens = split_tokens,
                                                  .out_dtype = wide,
                                                  .decodes_as_chunks = GetParam().is_for_chunks};
      EXPECT_TRUE(SameBits(device.Attend(options), wider.Attend(options))) << head_dim;
      for (int64_t token = 0; token < world.batch().num_tokens; token += 4) {
        const auto first = world.qkv().begin() + token * world.width();
        const std::vector<float> qkv(first, first + world.width());
        EXPECT_TRUE(SameBits(device.Attend(world.Alone(token), qkv, options),
                             wider.Attend(world.Alone(token), qkv, options)))
            << head_dim;
      }
    }
  }
}

// Where a position's row of a KV head begins in the cache.
int64_t ElementOf(const PagedWorld& world, int64_t seq, int position, int head) {
  const PagedShape& shape = world.shape();
  const int64_t block = world.batch().BlockTable(seq)[position / shape.block_size];
  return ((block * shape.num_kv_heads + head) * shape.block_size + position % shape.block_size) *
         kWidth;
}

// A token that sees itself alone gets its value.
TEST_P(E4m3Attention, EveryNumberIsItself) {
  constexpr int kNumbers = 256;
  const PagedWorld world = World(1, std::vector<SequenceChunk>(kNumbers / kWidth, {0, 1}));
  std::vector<uint8_t> values = world.values();
  std::vector<float> want;
  for (int i = 0; i < kNumbers; ++i) {
    const auto bits = static_cast<uint8_t>(i);
    values[ElementOf(world, i / kWidth, 0, 0) + i % kWidth] = bits;
    const bool is_beside_nan = i % 128 / kTogether == 127 / kTogether;
    want.push_back(is_beside_nan ? NAN : ToFloat(E4M3{bits}) + 0.0f);  // sums begin with 0
  }
  EXPECT_TRUE(SameBits(Attend(world, world.RowMajorKeys(), values), want));
}

// No carry from one byte to the next makes it one.
TEST_P(E4m3Attention, TheLargestNumbersAreNoNan) {
  const PagedWorld world = World(1, {{0, 1}});
  std::vector<uint8_t> values = world.values();
  for (const uint8_t bits : {0x7e, 0xfe}) {
    std::fill_n(values.begin() + ElementOf(world, 0, 0, 0), kWidth, bits);
    const std::vector<float> want(kWidth, ToFloat(E4M3{bits}));
    EXPECT_TRUE(SameBits(Attend(world, world.RowMajorKeys(), values), want));
  }
}

// Wherever among the sixteen it is, of either sign, among the largest numbers and beside another.
std::vector<uint8_t> SixteenWithNan(int place) {
  std::vector<uint8_t> bytes(kTogether, 0x7e);
  bytes[place] = place % 2 == 0 ? 0x7f : 0xff;
  if (place % 4 == 3) bytes[place - 1] = 0xff;
  return bytes;
}

// All as wanted but elements begin..end - 1.
void ExpectNan(const std::vector<float>& got, const std::vector<float>& want, int begin, int end) {
  for (int i = 0; i < std::ssize(want); ++i) {
    if (i >= begin && i < end) {
      EXPECT_TRUE(std::isnan(got[i])) << i;
    } else {
      EXPECT_EQ(got[i], want[i]) << i;
    }
  }
}

TEST_P(E4m3Attention, ANanInTheCacheIsNanToWhoSeesIt) {
  const PagedWorld world = World(2, {{69, 1}, {8, 1}});
  const std::vector<uint8_t> keys = world.RowMajorKeys();
  const std::vector<float> want = Attend(world, keys, world.values());
  for (int place = 0; place < kTogether; ++place) {
    const std::vector<uint8_t> sixteen = SixteenWithNan(place);
    const int64_t at = ElementOf(world, 0, 4 * place + 3, 1) + kTogether;
    std::vector<uint8_t> changed = world.values();
    std::copy(sixteen.begin(), sixteen.end(), changed.begin() + at);
    // Those columns of the first token's second head.
    ExpectNan(Attend(world, keys, changed), want, kWidth + kTogether, kWidth + 2 * kTogether);
    changed = keys;
    std::copy(sixteen.begin(), sixteen.end(), changed.begin() + at);
    ExpectNan(Attend(world, changed, world.values()), want, kWidth, 2 * kWidth);
  }
}

INSTANTIATE_TEST_SUITE_P(
    As, E4m3Attention,
    ::testing::Values(E4m3Kernel{DType::kBF16, false}, E4m3Kernel{DType::kBF16, true},
                      E4m3Kernel{DType::kF16, false}, E4m3Kernel{DType::kF16, true}),
    [](const auto& info) {
      return std::string(DTypeName(info.param.dtype)) + (info.param.is_for_chunks ? "_chunks" : "");
    });

}  // namespace
}  // namespace lockstep::testing
