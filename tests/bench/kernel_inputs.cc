#include "tests/bench/kernel_inputs.h"

#include <algorithm>
#include <random>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/host_rows.h"

namespace lockstep::bench {

std::vector<float> RandomFloats(int64_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(static_cast<int32_t>(engine())) * 0x1p-31f;
  return values;
}

PagedBatch::PagedBatch(Backend& backend, const PagedBatchShape& shape)
    : shape_(shape),
      blocks_per_seq_((shape.context + kBlockSize - 1) / kBlockSize),
      num_blocks_(shape.num_seqs * blocks_per_seq_) {
  const int64_t elements = num_blocks_ * kKvHeads * kBlockSize * kHeadDim;
  side_bytes_ = elements * DTypeBytes(shape.dtype);
  num_copies_ = static_cast<int>(std::clamp<int64_t>(kColdBytes / (2 * side_bytes_), 1, 64));
  for (int i = 0; i < 2 * num_copies_; ++i) AddSide(backend, RandomFloats(elements, 3 + i % 2));
  for (int seq = 0; seq < shape.num_seqs; ++seq) AddSequence(seq);
  slots_.resize(positions_.size());
  batch_ = {static_cast<int64_t>(positions_.size()),
            shape.num_seqs,
            positions_.data(),
            slots_.data(),
            starts_.data(),
            lens_.data(),
            rows_.data(),
            tables_.data(),
            blocks_per_seq_};
  qkv_ = RandomFloats(batch_.num_tokens * (kHeads + 2 * kKvHeads) * kHeadDim, 5);
}

void PagedBatch::AddSide(Backend& backend, const std::vector<float>& from) {
  auto side = backend.Allocate(side_bytes_);
  LS_CHECK(side.ok()) << side.status();
  sides_.push_back(*std::move(side));
  NarrowRow(from.data(), static_cast<int64_t>(from.size()), shape_.dtype, sides_.back().data());
}

void PagedBatch::AddSequence(int seq) {
  for (int64_t i = 0; i < shape_.chunk; ++i) {
    positions_.push_back(static_cast<int32_t>(shape_.context - shape_.chunk + i));
  }
  starts_.push_back(static_cast<int32_t>(positions_.size()));
  lens_.push_back(static_cast<int32_t>(shape_.context));
  rows_.push_back(seq);
  for (int64_t b = 0; b < blocks_per_seq_; ++b) {
    tables_.push_back(static_cast<int32_t>(b * shape_.num_seqs + seq));
  }
}

BatchIndex PagedBatch::FirstToken() const {
  static constexpr int32_t kOne[2] = {0, 1};
  BatchIndex first = batch_;
  first.num_tokens = 1;
  first.num_seqs = 1;
  first.query_starts = kOne;
  return first;
}

double PagedBatch::flops() const {
  double visible = 0;
  for (const int32_t p : positions_) visible += p + 1;
  return 4.0 * visible * kHeads * kHeadDim;
}

void PagedBatch::Attend(Backend& backend, int i, const BatchIndex& batch, float* out) const {
  const int copy = i % num_copies_;
  const KvCacheView cache = {sides_[2 * copy].data(),
                             sides_[2 * copy + 1].data(),
                             shape_.dtype,
                             num_blocks_,
                             kKvHeads,
                             kBlockSize,
                             kHeadDim};
  backend.Attention({qkv_.data(), kHeads, 0.125f, &batch, &cache, out});
}

}  // namespace lockstep::bench
