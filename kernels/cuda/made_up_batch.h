// A batch of attention with made-up numbers, on the device: what kernels are tried on.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend_args.h"
#include "kernels/batch_index.h"
#include "kernels/cuda/kernels.h"
#include "kernels/dtype.h"
#include "kernels/kv_cache_view.h"

namespace lockstep::cuda {

class MadeUpBatch {
 public:
  struct Sequence {
    int computed;  // tokens in the cache before
    int chunk;     // new ones
  };
  static constexpr int kGroup = 4;

  struct Cache {
    DType dtype;  // kBF16 or kF16
    int num_kv_heads;
    int block_size;
    int head_dim;
  };
  // Positions of the cache beyond the sequences' ends are NaN; blocks are in no order.
  static absl::StatusOr<std::unique_ptr<MadeUpBatch>> Create(const std::vector<Sequence>& sequences,
                                                             const Cache& cache,
                                                             cudaStream_t stream);

  const BatchIndex& index() const { return index_; }
  const KvCacheView& cache() const { return cache_; }
  int num_heads() const { return cache_.num_kv_heads * kGroup; }
  int64_t out_elements() const { return index_.num_tokens * num_heads() * cache_.head_dim; }
  // Of attention: multiply-adds count two.
  double flops() const { return flops_; }
  // Lays it out anew, in splits of so many tokens. Waits for the stream.
  absl::Status CutInto(int64_t split_tokens, bool wgmma, const AttentionWorkspace& workspace,
                       cudaStream_t stream);
  // `out` has out_elements(). After CutInto.
  AttentionArgs Args(void* out) const;

 private:
  struct Free {
    void operator()(void* memory) const { cudaFree(memory); }
  };
  MadeUpBatch() = default;
  int NumBlocks(const Sequence& sequence) const;
  // Block numbers of all sequences, [num_seqs, max_blocks_per_seq]; those after a last are -1.
  std::vector<int32_t> BlockTables(const std::vector<Sequence>& sequences) const;
  float NextNumber();
  template <typename T>
  absl::StatusOr<T*> Place(const std::vector<T>& values, cudaStream_t stream);
  absl::Status Fill(const std::vector<Sequence>& sequences, cudaStream_t stream);
  absl::Status FillCache(const std::vector<Sequence>& sequences, const std::vector<int32_t>& tables,
                         cudaStream_t stream);

  BatchIndex index_;
  KvCacheView cache_;
  const float* qkv_ = nullptr;
  double flops_ = 0;
  uint64_t random_ = 1;
  std::vector<int32_t> query_starts_;
  std::vector<int32_t> context_lens_;
  std::vector<int32_t> table_rows_;  // each its own
  std::vector<std::unique_ptr<void, Free>> memory_;
};

}  // namespace lockstep::cuda
