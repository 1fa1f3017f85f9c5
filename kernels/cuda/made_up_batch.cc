#include "kernels/cuda/made_up_batch.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"

namespace lockstep::cuda {
namespace {

constexpr uint16_t kNan = 0x7fff;  // of either type

}  // namespace

absl::StatusOr<std::unique_ptr<MadeUpBatch>> MadeUpBatch::Create(
    const std::vector<Sequence>& sequences, const Cache& cache, cudaStream_t stream) {
  std::unique_ptr<MadeUpBatch> batch(new MadeUpBatch);
  batch->cache_.dtype = cache.dtype;
  batch->cache_.num_kv_heads = cache.num_kv_heads;
  batch->cache_.block_size = cache.block_size;
  batch->cache_.head_dim = cache.head_dim;
  RETURN_IF_ERROR(batch->Fill(sequences, stream));
  return batch;
}

int MadeUpBatch::NumBlocks(const Sequence& sequence) const {
  return (sequence.computed + sequence.chunk + cache_.block_size - 1) / cache_.block_size;
}

std::vector<int32_t> MadeUpBatch::BlockTables(const std::vector<Sequence>& sequences) const {
  int64_t stride = cache_.num_blocks * 5 / 8 + 1;
  while (std::gcd(stride, cache_.num_blocks) != 1) ++stride;
  const auto width = static_cast<size_t>(index_.max_blocks_per_seq);
  std::vector<int32_t> tables(sequences.size() * width, -1);
  int64_t next = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (int b = 0; b < NumBlocks(sequences[s]); ++b, ++next) {
      tables[s * width + static_cast<size_t>(b)] =
          static_cast<int32_t>(next * stride % cache_.num_blocks);
    }
  }
  return tables;
}

// Evenly in [-1, 1): a linear congruence (Knuth's MMIX), its upper bits.
float MadeUpBatch::NextNumber() {
  random_ = random_ * 6364136223846793005u + 1442695040888963407u;
  return static_cast<float>(static_cast<int32_t>(random_ >> 32)) * 0x1p-31f;
}

template <typename T>
absl::StatusOr<T*> MadeUpBatch::Place(const std::vector<T>& values, cudaStream_t stream) {
  void* memory = nullptr;
  const size_t bytes = values.size() * sizeof(T);
  RETURN_IF_ERROR(CudaStatus(cudaMalloc(&memory, bytes), "memory of a trial"));
  memory_.emplace_back(memory);
  RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(memory, values.data(), bytes, cudaMemcpyHostToDevice, stream), "a trial"));
  RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream), "a trial"));
  return static_cast<T*>(memory);
}

absl::Status MadeUpBatch::Fill(const std::vector<Sequence>& sequences, cudaStream_t stream) {
  std::vector<int32_t> positions;
  query_starts_ = {0};
  for (const Sequence& sequence : sequences) {
    for (int i = 0; i < sequence.chunk; ++i) positions.push_back(sequence.computed + i);
    query_starts_.push_back(static_cast<int32_t>(positions.size()));
    table_rows_.push_back(static_cast<int32_t>(table_rows_.size()));
    context_lens_.push_back(sequence.computed + sequence.chunk);
    cache_.num_blocks += NumBlocks(sequence);
    index_.max_blocks_per_seq = std::max<int64_t>(index_.max_blocks_per_seq, NumBlocks(sequence));
  }
  index_.num_seqs = static_cast<int64_t>(sequences.size());
  index_.num_tokens = static_cast<int64_t>(positions.size());
  for (const int32_t position : positions) {
    flops_ += 4.0 * (position + 1) * num_heads() * cache_.head_dim;
  }

  const int64_t width = (num_heads() + 2 * cache_.num_kv_heads) * int64_t{cache_.head_dim};
  std::vector<float> qkv(static_cast<size_t>(index_.num_tokens * width));
  for (float& x : qkv) x = 4.0f * NextNumber();  // scores differ by a few
  ASSIGN_OR_RETURN(qkv_, Place(qkv, stream));
  const std::vector<int32_t> tables = BlockTables(sequences);
  ASSIGN_OR_RETURN(index_.block_tables, Place(tables, stream));
  return FillCache(sequences, tables, stream);
}

absl::Status MadeUpBatch::CutInto(int64_t split_tokens, bool wgmma,
                                  const AttentionWorkspace& workspace, cudaStream_t stream) {
  AttentionWork work;
  const AttentionForm& form = work.LayOut(
      {query_starts_, context_lens_, table_rows_, index_.max_blocks_per_seq},
      {num_heads(), cache_.num_kv_heads, cache_.head_dim}, cache_.dtype,
      {.wgmma = wgmma, .workspace_bytes = workspace.bytes, .split_tokens = split_tokens});
  const std::vector<std::byte> bytes(work.bytes().begin(), work.bytes().end());
  ASSIGN_OR_RETURN(index_.attention_work, Place(bytes, stream));
  index_.attention_form = form.Packed();
  return absl::OkStatus();
}

absl::Status MadeUpBatch::FillCache(const std::vector<Sequence>& sequences,
                                    const std::vector<int32_t>& tables, cudaStream_t stream) {
  const int64_t row = cache_.head_dim;
  const int block_size = cache_.block_size;
  const int64_t elements = cache_.num_blocks * cache_.num_kv_heads * block_size * row;
  for (void** side : {&cache_.k, &cache_.v}) {
    std::vector<uint16_t> values(static_cast<size_t>(elements));
    for (uint16_t& value : values) {
      const float number = NextNumber();
      value = cache_.dtype == DType::kF16 ? ToF16(number).bits : ToBF16(number).bits;
    }
    for (size_t s = 0; s < sequences.size(); ++s) {
      const int end = (sequences[s].computed + sequences[s].chunk) % block_size;
      if (end == 0) continue;
      const int64_t last_block = tables[s * static_cast<size_t>(index_.max_blocks_per_seq) +
                                        static_cast<size_t>(NumBlocks(sequences[s]) - 1)];
      for (int64_t head = 0; head < cache_.num_kv_heads; ++head) {
        auto* block = values.data() + (last_block * cache_.num_kv_heads + head) * block_size * row;
        std::fill(block + end * row, block + block_size * row, kNan);
      }
    }
    ASSIGN_OR_RETURN(*side, Place(values, stream));
  }
  return absl::OkStatus();
}

AttentionArgs MadeUpBatch::Args(void* out) const {
  return {qkv_,    num_heads(), 1.0f / std::sqrt(static_cast<float>(cache_.head_dim)),
          &index_, &cache_,     out};
}

}  // namespace lockstep::cuda
