// Attention of a PagedWorld by the CUDA kernels.
#pragma once

#include <vector>

#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/paged_world.h"

namespace lockstep::testing {

// A world's cache, and any batch over it, on the device.
class AttentionOnDevice {
 public:
  explicit AttentionOnDevice(const PagedWorld& world);

  // Changes what the host knows of a batch: sizes that are upper bounds in a captured graph.
  struct Options {
    cuda::AttentionPlan plan = {64, 0};  // max_splits 0: those of the longest context
    DType out_dtype = DType::kF32;
    int64_t max_query_len = 0;  // 0: the batch's
    int spare_splits = 0;
    int64_t workspace_tokens = 0;  // that partial results have room for; 0: all
    bool wgmma = false;            // for chunks
    bool rounded_qkv = false;      // comes as BF16
  };
  // For that; null where the device cannot.
  static cuda::TensorMapEncoder Encoder();
  // qkv: [batch's tokens, world.width()], rotated. Rows that were left alone are NaN.
  std::vector<float> Attend(const FlatBatch& batch, const std::vector<float>& qkv,
                            const Options& options) const;
  // Of the world's own batch.
  std::vector<float> Attend(const Options& options) const {
    return Attend(world_.flat(), world_.qkv(), options);
  }

 private:
  const PagedWorld& world_;
  DeviceArray<uint8_t> keys_;
  DeviceArray<uint8_t> values_;
};

// The arrays of a batch on the device.
class DeviceBatch {
 public:
  explicit DeviceBatch(const FlatBatch& batch);
  const BatchIndex& index() const { return index_; }
  // The same sizes.
  void Write(const FlatBatch& batch);

 private:
  DeviceArray<int32_t> positions_;
  DeviceArray<int64_t> slots_;
  DeviceArray<int32_t> query_starts_;
  DeviceArray<int32_t> context_lens_;
  DeviceArray<int32_t> block_tables_;
  BatchIndex index_;
};

}  // namespace lockstep::testing
