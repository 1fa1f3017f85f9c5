// Where the splits of a paged cache lie, as attention's kernels take them: as they are where they
// can be, else brought together, or widened, in memory of the caller's.
#pragma once

#include <cstdint>

#include "kernels/cpu/vector_kernels.h"
#include "kernels/kv_cache_view.h"

namespace lockstep::cpu {

// Positions of one split of a sequence, of one KV head.
struct SplitPositions {
  const int32_t* blocks;  // of the sequence
  int kv_head;
  int64_t begin;  // a multiple of kSplitTokens
  int count;      // 1 to kSplitTokens
};

// Pure but for the memory that it is given; any thread. Refers to its arguments.
class SplitReader {
 public:
  SplitReader(const KvCacheView& cache, const VectorKernels& kernels);

  // What the kernels multiply: pairs of bf16, else f32.
  bool bf16() const { return cache_.dtype != DType::kF32; }
  // SplitAttention::key_line_bytes.
  int64_t key_line_bytes() const;
  // That Read takes, a multiple of 64; 0 where all is read where it lies.
  int64_t memory_bytes() const;
  // `memory`, at 64 bytes, is the split's for as long as `groups` is used.
  void Read(const SplitPositions& positions, char* memory, SplitGroups& groups) const;

 private:
  // In the cache: a position's row, its part of a line of keys, and a group of keys or of values.
  int64_t row_bytes() const { return cache_.head_dim * DTypeBytes(cache_.dtype); }
  int64_t word_bytes() const { return (bf16() ? 2 : 1) * DTypeBytes(cache_.dtype); }
  int64_t group_bytes() const { return kGroupTokens * row_bytes(); }
  // Of a line of keys to the next, once they are gathered if they must be.
  int64_t line_bytes() const;
  int64_t widened_bytes() const;  // of a group

  void Find(const SplitPositions& positions, SplitGroups& groups) const;
  void Gather(const SplitPositions& positions, char* memory, SplitGroups& groups) const;
  void Widen(int count, char* memory, SplitGroups& groups) const;
  void WidenKeys(const char* keys, char* to) const;

  const KvCacheView& cache_;
  const VectorKernels& kernels_;
  const bool is_gathered_;  // groups of positions lie in pieces
  const bool is_widened_;
};

}  // namespace lockstep::cpu
