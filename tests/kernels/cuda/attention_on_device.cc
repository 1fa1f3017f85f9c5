#include "tests/kernels/cuda/attention_on_device.h"

namespace lockstep::testing {

cuda::TensorMapEncoder AttentionOnDevice::Encoder() {
  cudaDeviceProp device = {};
  EXPECT_EQ(cudaGetDeviceProperties(&device, 0), cudaSuccess);
#ifdef LOCKSTEP_CUDA_EMULATION
  if (device.major == 9) return &cuTensorMapEncodeTiled;  // whatever the driver pretended has
#endif
  return cuda::FindTensorMapEncoder(device);
}

std::vector<float> AttentionOnDevice::Attend(const FlatBatch& batch, const std::vector<float>& qkv,
                                             const Options& options) const {
  const PagedShape& shape = world_.shape();
  const cuda::AttentionHeads heads = {shape.num_heads, shape.num_kv_heads, shape.head_dim};
  const int64_t row_bytes = (heads.head_dim + 2) * int64_t{sizeof(float)} * heads.num_kv_heads;
  cuda::AttentionMachine machine = {.num_multiprocessors = options.num_multiprocessors,
                                    .wgmma = options.wgmma,
                                    .fixed_splits = options.fixed_splits,
                                    .workspace_bytes = int64_t{16} << 20,
                                    .split_tokens = options.split_tokens,
                                    .decodes_as_chunks = options.decodes_as_chunks};
  if (options.workspace_splits != 0) {
    const cuda::AttentionForm form = DeviceBatch(batch, shape, machine, options.cut).form();
    machine.workspace_bytes = options.workspace_splits * form.PartialRows(heads) * row_bytes;
  }
  const DeviceBatch device_batch(batch, shape, machine, options.cut);
  // What the host has laid out is all that attention knows.
  BatchIndex index = device_batch.index();
  index.positions = index.query_starts = index.context_lens = nullptr;
  index.slot_mapping = nullptr;
  index.table_rows = nullptr;
  const DeviceArray<float> plain_qkv(qkv);
  const DeviceArray<BF16> rounded_qkv(Narrowed<BF16>(qkv));
  // No larger than what is used: its edges are looked at.
  const int64_t workspace_bytes = device_batch.NumPartialRows() * row_bytes;
  const DeviceArray<uint8_t> workspace(workspace_bytes);
  KvCacheView cache = world_.cache();
  cache.k = keys_.data();
  cache.v = values_.data();
  cache.dtype = dtype_;
  const auto attend = [&](void* out) {
    AttentionArgs args = {plain_qkv.data(), shape.num_heads, world_.scale(), &index, &cache, out};
    if (options.rounded_qkv) args.qkv = rounded_qkv.data();
    if (options.rounded_qkv) args.qkv_dtype = DType::kBF16;
    EXPECT_EQ(cuda::LaunchAttention(args, options.out_dtype, {workspace.data(), workspace_bytes},
                                    options.wgmma ? Encoder() : nullptr, nullptr),
              cudaSuccess);
  };
  const std::vector<float> result =
      Filled(options.out_dtype, index.num_tokens * world_.out_width(), 0, attend);
  workspace.Read();  // its edges
  return result;
}

DeviceBatch::DeviceBatch(const FlatBatch& batch, const PagedShape& shape,
                         const cuda::AttentionMachine& machine, AttentionCut cut)
    : shape_(shape),
      machine_(machine),
      cut_(cut),
      positions_(batch.positions),
      slots_(batch.slots),
      query_starts_(batch.query_starts),
      context_lens_(batch.context_lens),
      block_tables_(batch.block_tables),
      attention_work_(LayOut(batch)),
      index_(batch.Index()) {
  index_.positions = positions_.data();
  index_.slot_mapping = slots_.data();
  index_.query_starts = query_starts_.data();
  index_.context_lens = context_lens_.data();
  index_.block_tables = block_tables_.data();
  index_.attention_work = reinterpret_cast<const std::byte*>(attention_work_.data());
  index_.attention_form = form().Packed();
}

void DeviceBatch::Write(const FlatBatch& batch) {
  positions_.Write(batch.positions);
  slots_.Write(batch.slots);
  query_starts_.Write(batch.query_starts);
  context_lens_.Write(batch.context_lens);
  block_tables_.Write(batch.block_tables);
  attention_work_.Write(LayOut(batch));
  ASSERT_EQ(form().Packed(), index_.attention_form);
}

int64_t DeviceBatch::NumPartialRows() const {
  const cuda::AttentionHeads heads = {shape_.num_heads, shape_.num_kv_heads, shape_.head_dim};
  int most = 0;
  for (int launch = 0; launch < form().launches; ++launch) {
    const auto* header = reinterpret_cast<const cuda::AttentionHeader*>(
        work_.bytes().data() + launch * form().LaunchBytes());
    const auto* items = reinterpret_cast<const cuda::AttentionItem*>(header + 1);
    for (int i = 0; i < header->num_items; ++i) {
      if (items[i].slot < 0) continue;
      const int rows = std::min(form().PartialRows(heads), items[i].num_rows - items[i].first_row);
      const int tokens = items[i].end - items[i].first;
      const int splits = (tokens + header->split_tokens - 1) / header->split_tokens;
      most = std::max(most, items[i].slot + splits * rows);
    }
  }
  return most;
}

std::vector<uint8_t> DeviceBatch::LayOut(const FlatBatch& batch) {
  work_.LayOut(
      {batch.query_starts, batch.context_lens, batch.table_rows, batch.max_blocks_per_seq, cut_},
      {shape_.num_heads, shape_.num_kv_heads, shape_.head_dim}, shape_.dtype, machine_);
  std::vector<uint8_t> bytes(work_.bytes().size());
  std::memcpy(bytes.data(), work_.bytes().data(), bytes.size());
  return bytes;
}

}  // namespace lockstep::testing
