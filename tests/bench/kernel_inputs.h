// What kernel_bench measures the CPU kernels on: numbers, and batches over paged caches, with
// copies enough to be cold when used in turn.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace lockstep::bench {

constexpr int64_t kColdBytes = 192 << 20;  // of copies; several times the last cache

// Cheap and even, in [-1, 1): the values do not matter to the time.
std::vector<float> RandomFloats(int64_t count, uint32_t seed);

// num_seqs sequences of `context` tokens, the last `chunk` of each being the batch.
struct PagedBatchShape {
  DType dtype;
  int num_seqs;
  int64_t context;
  int64_t chunk;
};

class PagedBatch {
 public:
  static constexpr int kHeads = 32;
  static constexpr int kKvHeads = 8;
  static constexpr int kHeadDim = 64;
  static constexpr int kBlockSize = 16;

  PagedBatch(Backend& backend, const PagedBatchShape& shape);
  PagedBatch(const PagedBatch&) = delete;  // a copy would point into the original
  PagedBatch& operator=(const PagedBatch&) = delete;

  const BatchIndex& batch() const { return batch_; }
  BatchIndex FirstToken() const;
  int64_t bytes() const { return 2 * side_bytes_; }  // of one copy's keys and values
  double flops() const;
  // Over the i-th copy. out: [batch.num_tokens, kHeads * kHeadDim]
  void Attend(Backend& backend, int i, const BatchIndex& batch, float* out) const;

 private:
  void AddSide(Backend& backend, const std::vector<float>& from);
  void AddSequence(int seq);

  const PagedBatchShape shape_;
  const int64_t blocks_per_seq_;
  const int64_t num_blocks_;
  int64_t side_bytes_;
  int num_copies_;
  std::vector<DeviceBuffer> sides_;  // k and v of each copy
  std::vector<int32_t> positions_, starts_ = {0}, lens_, rows_, tables_;
  std::vector<int64_t> slots_;
  std::vector<float> qkv_;
  BatchIndex batch_;
};

}  // namespace lockstep::bench
