// A flat batch of sequences over a paged cache, for tests of attention: shuffled blocks, in tables
// that are rows among others, NaN wherever nothing was written.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "tests/kernels/kernel_fixture.h"

namespace lockstep::testing {

struct PagedShape {
  int num_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 16;
  int block_size = 4;
  DType dtype = DType::kF32;
  // Of what heads are adjusted by before they are rotated.
  bool has_bias = false;
  bool has_norms = false;
  float k_scale = 1.0f;  // KvCacheView's
  float v_scale = 1.0f;
};

// Tokens of one sequence in the batch: `computed` are in the cache already, `chunk` are new.
struct SequenceChunk {
  int computed;
  int chunk;
};

// BatchIndex with its arrays.
struct FlatBatch {
  int64_t max_blocks_per_seq = 0;
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
  std::vector<int32_t> query_starts;
  std::vector<int32_t> context_lens;
  std::vector<int32_t> table_rows;
  std::vector<int32_t> block_tables;

  BatchIndex Index() const;  // of these very arrays
  int32_t* BlockTable(size_t seq) {
    return block_tables.data() + table_rows[seq] * max_blocks_per_seq;
  }
};

// A cache and, per sequence, a context written by the reference backend.
class PagedWorld {
 public:
  PagedWorld(const PagedShape& shape, const std::vector<SequenceChunk>& chunks, uint32_t seed);
  PagedWorld(PagedWorld&&) = default;  // a copy would point into the original

  const PagedShape& shape() const { return shape_; }
  const FlatBatch& flat() const { return flat_; }
  const BatchIndex& batch() const { return batch_; }
  const KvCacheView& cache() const { return cache_; }
  std::vector<float>& qkv() { return qkv_; }
  const std::vector<float>& qkv() const { return qkv_; }
  const std::vector<float>& cos() const { return cos_; }
  const std::vector<float>& sin() const { return sin_; }
  const std::vector<float>& bias() const { return bias_; }
  const std::vector<float>& q_norm() const { return q_norm_; }
  const std::vector<float>& k_norm() const { return k_norm_; }
  // These three, where the shape has them.
  HeadAdjustments adjust() const;
  // Elements of a token in qkv and in the result.
  int64_t width() const;
  int64_t out_width() const;
  float scale() const;

  // The cache's keys and values, both as [num_blocks, num_kv_heads, block_size, head_dim].
  std::vector<uint8_t> RowMajorKeys() const;
  const std::vector<uint8_t>& values() const { return v_; }

  // Rotates, writes the cache; gives qkv and the cache's bytes. Leaves the world as it is.
  std::pair<std::vector<float>, std::vector<uint8_t>> Rope(Backend& backend) const;
  // The batch's new tokens into the cache, so that attention can follow.
  void WriteBatch();
  std::vector<float> Attend(Backend& backend) const;

  // A batch of one token of this world, sharing its cache.
  FlatBatch Alone(int64_t token) const;
  std::vector<float> AttendAlone(Backend& backend, int64_t token) const;

 private:
  void ShuffleBlocks(int num_blocks);
  int64_t SlotOf(size_t seq, int position) const;
  void MakeBatch();
  void MakeTables();
  void FillContext();
  RopeArgs Roped(float* qkv, const BatchIndex& batch, const KvCacheView& cache) const;

  PagedShape shape_;
  std::vector<SequenceChunk> chunks_;
  Random random_;
  std::vector<uint8_t> k_;  // as the CPU bodies have them
  std::vector<uint8_t> v_;
  KvCacheView cache_;
  FlatBatch flat_;
  BatchIndex batch_;
  std::vector<float> qkv_;
  std::vector<float> cos_;
  std::vector<float> sin_;
  std::vector<float> bias_;
  std::vector<float> q_norm_;
  std::vector<float> k_norm_;
};

}  // namespace lockstep::testing
