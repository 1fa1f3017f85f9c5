#include "tests/kernels/paged_world.h"
#include "kernels/cpu_backend_options.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace lockstep::testing {

BatchIndex FlatBatch::Index() const {
  BatchIndex batch;
  batch.num_tokens = static_cast<int64_t>(positions.size());
  batch.num_seqs = static_cast<int64_t>(context_lens.size());
  batch.max_blocks_per_seq = max_blocks_per_seq;
  batch.positions = positions.data();
  batch.slot_mapping = slots.data();
  batch.query_starts = query_starts.data();
  batch.context_lens = context_lens.data();
  batch.table_rows = table_rows.data();
  batch.block_tables = block_tables.data();
  return batch;
}

PagedWorld::PagedWorld(const PagedShape& shape, const std::vector<SequenceChunk>& chunks,
                       uint32_t seed)
    : shape_(shape), chunks_(chunks), random_(seed) {
  int num_blocks = 3;  // some that nobody owns
  for (const SequenceChunk& c : chunks) {
    const int blocks = (c.computed + c.chunk + shape.block_size - 1) / shape.block_size;
    flat_.max_blocks_per_seq = std::max<int64_t>(flat_.max_blocks_per_seq, blocks);
    num_blocks += blocks;
  }
  const size_t elements =
      size_t(num_blocks) * shape.num_kv_heads * shape.block_size * shape.head_dim;
  k_.assign(elements * DTypeBytes(shape.dtype), 0xff);  // all ones is a NaN in any type
  v_ = k_;
  cache_ = {k_.data(),        v_.data(),      shape.dtype,   num_blocks,   shape.num_kv_heads,
            shape.block_size, shape.head_dim, shape.k_scale, shape.v_scale};
  ShuffleBlocks(num_blocks);
  MakeBatch();
  MakeTables();
  if (shape.has_bias) bias_ = random_.Normals(width());
  if (shape.has_norms) q_norm_ = random_.Normals(shape.head_dim);
  if (shape.has_norms) k_norm_ = random_.Normals(shape.head_dim);
  FillContext();
}

int64_t PagedWorld::width() const {
  return int64_t{shape_.num_heads + 2 * shape_.num_kv_heads} * shape_.head_dim;
}
int64_t PagedWorld::out_width() const { return int64_t{shape_.num_heads} * shape_.head_dim; }
float PagedWorld::scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }

std::vector<uint8_t> PagedWorld::RowMajorKeys() const {
  const auto bytes = static_cast<size_t>(DTypeBytes(shape_.dtype));
  const size_t together = shape_.dtype == DType::kF32 ? 1 : 2;  // of a token, side by side
  const size_t block_size = shape_.block_size;
  const size_t head_dim = shape_.head_dim;
  std::vector<uint8_t> keys(k_.size());
  for (size_t i = 0; i < k_.size() / bytes; ++i) {
    const size_t d = i % head_dim;
    const size_t token = i / head_dim % block_size;
    const size_t block = i / head_dim / block_size;
    const size_t from = block * block_size * head_dim +
                        (d / together * block_size + token) * together + d % together;
    std::copy_n(k_.data() + from * bytes, bytes, keys.data() + i * bytes);
  }
  return keys;
}

std::pair<std::vector<float>, std::vector<uint8_t>> PagedWorld::Rope(Backend& backend) const {
  std::vector<uint8_t> k = k_;
  std::vector<uint8_t> v = v_;
  KvCacheView cache = cache_;
  cache.k = k.data();
  cache.v = v.data();
  Padded qkv(qkv_);
  backend.RopeAndWriteKv(Roped(qkv.data(), batch_, cache));
  qkv.ExpectEdgesUntouched();
  k.insert(k.end(), v.begin(), v.end());
  return {qkv.values(), k};
}

HeadAdjustments PagedWorld::adjust() const {
  HeadAdjustments adjust;
  if (shape_.has_bias) adjust.bias = bias_.data();
  if (shape_.has_norms) adjust.q_norm = q_norm_.data();
  if (shape_.has_norms) adjust.k_norm = k_norm_.data();
  adjust.eps = 1e-5f;
  return adjust;
}

RopeArgs PagedWorld::Roped(float* qkv, const BatchIndex& batch, const KvCacheView& cache) const {
  return {.qkv = qkv,
          .num_heads = shape_.num_heads,
          .cos = cos_.data(),
          .sin = sin_.data(),
          .batch = &batch,
          .cache = &cache,
          .adjust = adjust()};
}

void PagedWorld::WriteBatch() {
  const auto reference = MakeReferenceBackend();
  reference->RopeAndWriteKv(Roped(qkv_.data(), batch_, cache_));
}

std::vector<float> PagedWorld::Attend(Backend& backend) const {
  Padded qkv(qkv_);
  Padded out(batch_.num_tokens * out_width());
  backend.Attention({qkv.data(), shape_.num_heads, scale(), &batch_, &cache_, out.data()});
  out.ExpectEdgesUntouched();
  return out.values();
}

FlatBatch PagedWorld::Alone(int64_t token) const {
  const auto& starts = flat_.query_starts;
  const int64_t seq = std::upper_bound(starts.begin(), starts.end(), token) - starts.begin() - 1;
  const int32_t* const blocks = batch_.BlockTable(seq);
  FlatBatch alone;
  alone.max_blocks_per_seq = flat_.max_blocks_per_seq;
  alone.positions = {flat_.positions[token]};
  alone.slots = {flat_.slots[token]};
  alone.query_starts = {0, 1};
  alone.context_lens = {flat_.positions[token] + 1};
  alone.table_rows = {0};
  alone.block_tables.assign(blocks, blocks + flat_.max_blocks_per_seq);
  return alone;
}

std::vector<float> PagedWorld::AttendAlone(Backend& backend, int64_t token) const {
  const FlatBatch alone = Alone(token);
  const BatchIndex batch = alone.Index();
  std::vector<float> out(out_width());
  backend.Attention(
      {qkv_.data() + token * width(), shape_.num_heads, scale(), &batch, &cache_, out.data()});
  return out;
}

void PagedWorld::ShuffleBlocks(int num_blocks) {
  std::vector<int32_t> free(num_blocks);
  std::iota(free.begin(), free.end(), 0);
  std::shuffle(free.begin(), free.end(), random_.engine());
  constexpr int kRowsOfOthers = 2;
  flat_.table_rows.resize(chunks_.size() + kRowsOfOthers);
  std::iota(flat_.table_rows.begin(), flat_.table_rows.end(), 0);
  std::shuffle(flat_.table_rows.begin(), flat_.table_rows.end(), random_.engine());
  flat_.block_tables.assign(flat_.table_rows.size() * flat_.max_blocks_per_seq,
                            -1);  // reading one that is not there would be out of bounds
  flat_.table_rows.resize(chunks_.size());
  size_t used = 0;
  for (size_t s = 0; s < chunks_.size(); ++s) {
    const int tokens = chunks_[s].computed + chunks_[s].chunk;
    for (int b = 0; b * shape_.block_size < tokens; ++b) flat_.BlockTable(s)[b] = free[used++];
  }
}

int64_t PagedWorld::SlotOf(size_t seq, int position) const {
  const int64_t row = flat_.table_rows[seq];
  const int64_t block =
      flat_.block_tables[row * flat_.max_blocks_per_seq + position / shape_.block_size];
  return block * shape_.block_size + position % shape_.block_size;
}

void PagedWorld::MakeBatch() {
  flat_.query_starts.push_back(0);
  for (size_t s = 0; s < chunks_.size(); ++s) {
    for (int i = 0; i < chunks_[s].chunk; ++i) {
      flat_.positions.push_back(chunks_[s].computed + i);
      flat_.slots.push_back(SlotOf(s, chunks_[s].computed + i));
    }
    flat_.query_starts.push_back(static_cast<int32_t>(flat_.positions.size()));
    flat_.context_lens.push_back(chunks_[s].computed + chunks_[s].chunk);
  }
  batch_ = flat_.Index();
  qkv_ = random_.Normals(batch_.num_tokens * width());
  for (float& x : qkv_) x *= 1.5f;  // sharper scores
}

void PagedWorld::MakeTables() {
  const int half = shape_.head_dim / 2;
  const int longest = *std::max_element(flat_.context_lens.begin(), flat_.context_lens.end());
  for (int p = 0; p < longest; ++p) {
    for (int i = 0; i < half; ++i) {
      cos_.push_back(std::cos(0.1f * static_cast<float>(p + i)));
      sin_.push_back(std::sin(0.1f * static_cast<float>(p + i)));
    }
  }
}

void PagedWorld::FillContext() {
  const auto reference = MakeReferenceBackend();
  for (size_t s = 0; s < chunks_.size(); ++s) {
    for (int p = 0; p < chunks_[s].computed; ++p) {
      std::vector<float> qkv = random_.Normals(width());
      const int32_t position = p;
      const int64_t slot = SlotOf(s, p);
      BatchIndex one;
      one.num_tokens = 1;
      one.positions = &position;
      one.slot_mapping = &slot;
      reference->RopeAndWriteKv(Roped(qkv.data(), one, cache_));
    }
  }
}

}  // namespace lockstep::testing
