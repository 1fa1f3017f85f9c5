#include "tests/kernels/kv_copies.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "gtest/gtest.h"

namespace lockstep::testing {
namespace {

std::vector<std::byte> BytesOfTheirOwn(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// So many of [0, all), in any order, the first and the last of all among them.
std::vector<int32_t> AnyOf(int64_t count, int64_t all, std::mt19937& random) {
  std::vector<int32_t> numbers(static_cast<size_t>(all));
  std::iota(numbers.begin(), numbers.end(), 0);
  if (all > 2) std::shuffle(numbers.begin() + 1, numbers.end() - 1, random);
  if (count > 1) std::swap(numbers[1], numbers.back());
  numbers.resize(static_cast<size_t>(count));
  std::shuffle(numbers.begin(), numbers.end(), random);
  return numbers;
}

std::vector<BlockAndPlace> Pairs(const std::vector<int32_t>& blocks,
                                 const std::vector<int32_t>& places) {
  std::vector<BlockAndPlace> pairs;
  for (size_t i = 0; i < blocks.size(); ++i) pairs.push_back({blocks[i], places[i]});
  return pairs;
}

void ExpectThatBlocksOfThisSizeGoAndComeBack(Backend& backend, const KvCacheShape& shape,
                                             int64_t num_copies, int64_t shift) {
  const int64_t num_places = num_copies + 1;
  std::mt19937 random(3);
  KvCopies copies(backend, shape, num_places, shift);
  const auto places = AnyOf(num_copies, num_places, random);
  copies.Offload(Pairs(AnyOf(num_copies, shape.num_blocks, random), places));
  backend.AwaitOffloads();
  ASSERT_TRUE(copies.Cache() == copies.cache()) << "offloading wrote to the cache";
  ASSERT_TRUE(copies.Host() == copies.host()) << "offloaded";
  copies.Restore(Pairs(AnyOf(num_copies, shape.num_blocks, random), places));
  ASSERT_TRUE(copies.Cache() == copies.cache()) << "restored";
  copies.Prefetch(Pairs(AnyOf(num_copies, shape.num_blocks, random), places));
  backend.AwaitPrefetches();
  ASSERT_TRUE(copies.Cache() == copies.cache()) << "prefetched";
  ASSERT_TRUE(copies.Host() == copies.host()) << "restoring wrote to the host";
}

}  // namespace

KvCopies::KvCopies(Backend& backend, const KvCacheShape& shape, int64_t num_places, int64_t shift)
    : backend_(backend), shape_(shape), first_(kEdge + shift) {
  const int64_t block_bytes = shape.num_pieces * shape.piece_bytes;
  cache_model_ = BytesOfTheirOwn(first_ + shape.num_blocks * block_bytes + kEdge, 1);
  host_model_ = BytesOfTheirOwn(first_ + num_places * block_bytes + kEdge, 2);
  cache_memory_ = backend.Allocate(std::ssize(cache_model_)).value();
  host_memory_ = backend.AllocateOnHost(std::ssize(host_model_)).value();
  backend.CopyToDevice(cache_memory_.data(), cache_model_.data(), std::ssize(cache_model_));
  std::memcpy(host_memory_.data(), host_model_.data(), host_model_.size());
}

KvBlockCopies KvCopies::Pieces() const {
  return {.cache = cache_memory_.as<std::byte>() + first_,
          .num_pieces = shape_.num_pieces,
          .num_blocks = shape_.num_blocks,
          .piece_bytes = shape_.piece_bytes};
}

std::byte* KvCopies::PieceOfModel(int32_t block, int64_t piece) {
  return cache_model_.data() + first_ + (piece * shape_.num_blocks + block) * shape_.piece_bytes;
}

std::byte* KvCopies::PlaceOfModel(int64_t place, int64_t piece) {
  return host_model_.data() + first_ + (place * shape_.num_pieces + piece) * shape_.piece_bytes;
}

std::vector<KvBlockCopy> KvCopies::Addresses(const std::vector<BlockAndPlace>& pairs) const {
  std::vector<KvBlockCopy> addresses;
  for (const BlockAndPlace& pair : pairs) {
    std::byte* const host =
        host_memory_.as<std::byte>() + first_ + pair.place * shape_.num_pieces * shape_.piece_bytes;
    addresses.push_back({pair.block, host});
  }
  return addresses;
}

void KvCopies::Offload(const std::vector<BlockAndPlace>& pairs) {
  std::vector<KvBlockCopy> addresses = Addresses(pairs);
  KvBlockCopies copies = Pieces();
  copies.copies = addresses;
  backend_.OffloadKv(copies);
  std::ranges::fill(addresses, KvBlockCopy{});
  for (const auto& [block, place] : pairs) {
    for (int64_t piece = 0; piece < shape_.num_pieces; ++piece) {
      std::memcpy(PlaceOfModel(place, piece), PieceOfModel(block, piece),
                  static_cast<size_t>(shape_.piece_bytes));
    }
  }
}

void KvCopies::Restore(const std::vector<BlockAndPlace>& pairs) {
  CopyBack(pairs, &Backend::RestoreKv);
}

void KvCopies::Prefetch(const std::vector<BlockAndPlace>& pairs) {
  CopyBack(pairs, &Backend::PrefetchKv);
}

void KvCopies::CopyBack(const std::vector<BlockAndPlace>& pairs,
                        void (Backend::*copy)(const KvBlockCopies& copies)) {
  std::vector<KvBlockCopy> addresses = Addresses(pairs);
  KvBlockCopies copies = Pieces();
  copies.copies = addresses;
  (backend_.*copy)(copies);
  std::ranges::fill(addresses, KvBlockCopy{});
  for (const auto& [block, place] : pairs) {
    for (int64_t piece = 0; piece < shape_.num_pieces; ++piece) {
      std::memcpy(PieceOfModel(block, piece), PlaceOfModel(place, piece),
                  static_cast<size_t>(shape_.piece_bytes));
    }
  }
}

void KvCopies::Write(int32_t block, std::byte value) {
  std::fill_n(PieceOfModel(block, 0), shape_.piece_bytes, value);
  backend_.CopyToDevice(Pieces().PieceOf(block, 0), PieceOfModel(block, 0), shape_.piece_bytes);
}

std::vector<std::byte> KvCopies::Host() const {
  const auto* const first = host_memory_.as<std::byte>();
  return {first, first + host_model_.size()};
}

std::vector<std::byte> KvCopies::Cache() const {
  std::vector<std::byte> bytes(cache_model_.size());
  backend_.CopyToHost(bytes.data(), cache_memory_.data(), std::ssize(bytes));
  return bytes;
}

void ExpectThatBlocksGoAndComeBack(Backend& backend) {
  for (const int64_t piece_bytes : {2, 6, 16, 48, 128, 4096 + 16}) {
    for (const int64_t num_pieces : {1, 7}) {
      for (const int64_t num_copies : {0, 1, 2, 5}) {
        for (const int64_t shift : {0, 1, 8}) {
          SCOPED_TRACE(::testing::Message() << num_copies << " copies of " << num_pieces << " x "
                                            << piece_bytes << " bytes, from byte " << shift);
          const KvCacheShape shape = {num_pieces, num_copies + 2, piece_bytes};
          ExpectThatBlocksOfThisSizeGoAndComeBack(backend, shape, num_copies, shift);
        }
      }
      SCOPED_TRACE(::testing::Message() << "300 of " << num_pieces << " x " << piece_bytes);
      ExpectThatBlocksOfThisSizeGoAndComeBack(backend, {num_pieces, 302, piece_bytes}, 300, 0);
    }
  }
  // A cache of one block.
  ExpectThatBlocksOfThisSizeGoAndComeBack(backend, {2, 1, 32}, 1, 0);
}

}  // namespace lockstep::testing
