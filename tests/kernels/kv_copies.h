// A small KV cache, and copies of its blocks in the host's memory, by any backend: what is checked
// of Backend::OffloadKv, RestoreKv and PrefetchKv, byte by byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"

namespace lockstep::testing {

struct KvCacheShape {
  int64_t num_pieces = 1;
  int64_t num_blocks = 1;
  int64_t piece_bytes = 1;
};

// A block of the cache and a place in the host's memory.
struct BlockAndPlace {
  int32_t block = 0;
  int64_t place = 0;
};

// Bytes are bytes of their own everywhere: in all blocks, and in front of the first and behind the
// last; so in the host's memory, which has num_places for blocks.
class KvCopies {
 public:
  // Both begin `shift` bytes from an address that is aligned.
  KvCopies(Backend& backend, const KvCacheShape& shape, int64_t num_places, int64_t shift = 0);

  // Issued; the pairs are gone when the call returns.
  void Offload(const std::vector<BlockAndPlace>& pairs);
  void Restore(const std::vector<BlockAndPlace>& pairs);
  void Prefetch(const std::vector<BlockAndPlace>& pairs);
  // The block's first piece, as a step would write it: issued.
  void Write(int32_t block, std::byte value);

  // As the host's memory is now, nothing waited for.
  std::vector<std::byte> Host() const;
  std::vector<std::byte> Cache() const;  // when all that was issued before is done
  // The same of a model of plain bytes, which has done at once what was issued.
  const std::vector<std::byte>& host() const { return host_model_; }
  const std::vector<std::byte>& cache() const { return cache_model_; }

 private:
  static constexpr int64_t kEdge = 64;  // bytes before and behind

  KvBlockCopies Pieces() const;
  std::byte* PieceOfModel(int32_t block, int64_t piece);
  std::byte* PlaceOfModel(int64_t place, int64_t piece);
  void CopyBack(const std::vector<BlockAndPlace>& pairs,
                void (Backend::*copy)(const KvBlockCopies& copies));
  std::vector<KvBlockCopy> Addresses(const std::vector<BlockAndPlace>& pairs) const;

  Backend& backend_;
  const KvCacheShape shape_;
  const int64_t first_;  // byte
  DeviceBuffer cache_memory_;
  DeviceBuffer host_memory_;
  std::vector<std::byte> cache_model_;
  std::vector<std::byte> host_model_;
};

// Of every size, from whole blocks to what no vector fits, at aligned addresses and others: blocks
// go to the host and from there to other blocks; nothing else changes.
void ExpectThatBlocksGoAndComeBack(Backend& backend);

}  // namespace lockstep::testing
