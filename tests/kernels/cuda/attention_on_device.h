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
  explicit AttentionOnDevice(const PagedWorld& world)
      : AttentionOnDevice(world, world.RowMajorKeys(), world.values(), world.shape().dtype) {}
  // With a cache of other elements in its place, as many of that type.
  AttentionOnDevice(const PagedWorld& world, const std::vector<uint8_t>& keys,
                    const std::vector<uint8_t>& values, DType dtype)
      : world_(world), keys_(keys), values_(values), dtype_(dtype) {}

  struct Options {
    int64_t split_tokens = 64;  // 0: as is best for a device of so many multiprocessors
    int num_multiprocessors = 1;
    DType out_dtype = DType::kF32;
    bool decodes_as_chunks = false;
    int64_t workspace_splits = 0;  // of whole tiles, whose results there is room for; 0: many
    bool wgmma = false;            // for chunks
    bool rounded_qkv = false;      // comes as BF16
    bool fixed_splits = false;     // of split_tokens; 0: of as many as the backend takes
    AttentionCut cut = AttentionCut::kBest;
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
  DType dtype_;
};

// The arrays of a batch on the device, and how attention over a cache of that shape is laid out.
class DeviceBatch {
 public:
  DeviceBatch(const FlatBatch& batch, const PagedShape& shape,
              const cuda::AttentionMachine& machine, AttentionCut cut = AttentionCut::kBest);
  const BatchIndex& index() const { return index_; }
  const cuda::AttentionForm& form() const { return work_.form(); }
  int64_t NumPartialRows() const;  // of each KV head, that are used
  // The same sizes, and the same form.
  void Write(const FlatBatch& batch);

 private:
  std::vector<uint8_t> LayOut(const FlatBatch& batch);

  const PagedShape shape_;
  const cuda::AttentionMachine machine_;
  const AttentionCut cut_;
  cuda::AttentionWork work_;
  DeviceArray<int32_t> positions_;
  DeviceArray<int64_t> slots_;
  DeviceArray<int32_t> query_starts_;
  DeviceArray<int32_t> context_lens_;
  DeviceArray<int32_t> block_tables_;
  DeviceArray<uint8_t> attention_work_;
  BatchIndex index_;
};

}  // namespace lockstep::testing
