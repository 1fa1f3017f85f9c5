// Blocks of a paged KV cache that are kept in the host's memory, too: what Backend::OffloadKv and
// RestoreKv copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

struct KvBlockCopy {
  int32_t block = 0;          // of the cache
  std::byte* host = nullptr;  // [num_pieces, piece_bytes], in memory of Backend::AllocateOnHost
};

// A block's pieces, one for the keys and one for the values of each layer, are far apart in the
// cache and next to each other in the host's memory.
struct KvBlockCopies {
  std::byte* cache = nullptr;  // [num_pieces, num_blocks, piece_bytes], on the device
  int64_t num_pieces = 0;
  int64_t num_blocks = 0;
  int64_t piece_bytes = 0;
  std::span<const KvBlockCopy> copies = {};  // no destination twice; may be gone after the call

  std::byte* PieceOf(int32_t block, int64_t piece) const {
    return cache + (piece * num_blocks + block) * piece_bytes;
  }
};

}  // namespace lockstep
