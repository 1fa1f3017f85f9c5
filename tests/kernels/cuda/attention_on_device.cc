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

AttentionOnDevice::AttentionOnDevice(const PagedWorld& world)
    : world_(world), keys_(world.RowMajorKeys()), values_(world.values()) {}

std::vector<float> AttentionOnDevice::Attend(const FlatBatch& batch, const std::vector<float>& qkv,
                                             const Options& options) const {
  const DeviceBatch device_batch(batch);
  BatchIndex index = device_batch.index();
  if (options.max_query_len != 0) index.max_query_len = options.max_query_len;
  // Blocks beyond a sequence's context shall wait for nothing but its length. Positions are for
  // those that merge the splits of chunks.
  const bool decodes = index.max_query_len == 1 && index.num_tokens == index.num_seqs;
  if (decodes || (options.plan.split_tokens >= index.max_context_len && options.spare_splits == 0))
    index.positions = nullptr;
  cuda::AttentionPlan plan = options.plan;
  if (options.wgmma) plan.encode_maps = Encoder();
  if (plan.max_splits == 0) {
    plan.max_splits = (index.max_context_len + plan.split_tokens - 1) / plan.split_tokens;
  }
  plan.max_splits += options.spare_splits;
  const PagedShape& shape = world_.shape();
  const DeviceArray<float> plain_qkv(qkv);
  const DeviceArray<BF16> rounded_qkv(Narrowed<BF16>(qkv));
  const int64_t room = options.workspace_tokens != 0 ? options.workspace_tokens : index.num_tokens;
  const int64_t workspace_bytes =
      cuda::AttentionWorkspaceBytes(plan, room, shape.num_heads, shape.head_dim);
  const DeviceArray<uint8_t> workspace(workspace_bytes);
  KvCacheView cache = world_.cache();
  cache.k = keys_.data();
  cache.v = values_.data();
  const auto attend = [&](void* out) {
    Backend::AttentionArgs args = {plain_qkv.data(), shape.num_heads, world_.scale(),
                                   &index,           &cache,          out};
    if (options.rounded_qkv) args.qkv = rounded_qkv.data();
    if (options.rounded_qkv) args.qkv_dtype = DType::kBF16;
    EXPECT_EQ(cuda::LaunchAttention(args, plan, options.out_dtype,
                                    {workspace.data(), workspace_bytes}, nullptr),
              cudaSuccess);
  };
  const std::vector<float> result =
      Filled(options.out_dtype, index.num_tokens * world_.out_width(), 0, attend);
  workspace.Read();  // its edges
  return result;
}

DeviceBatch::DeviceBatch(const FlatBatch& batch)
    : positions_(batch.positions),
      slots_(batch.slots),
      query_starts_(batch.query_starts),
      context_lens_(batch.context_lens),
      block_tables_(batch.block_tables),
      index_(batch.Index()) {
  index_.positions = positions_.data();
  index_.slot_mapping = slots_.data();
  index_.query_starts = query_starts_.data();
  index_.context_lens = context_lens_.data();
  index_.block_tables = block_tables_.data();
}

void DeviceBatch::Write(const FlatBatch& batch) {
  positions_.Write(batch.positions);
  slots_.Write(batch.slots);
  query_starts_.Write(batch.query_starts);
  context_lens_.Write(batch.context_lens);
  block_tables_.Write(batch.block_tables);
}

}  // namespace lockstep::testing
