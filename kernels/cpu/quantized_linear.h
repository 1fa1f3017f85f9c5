// Linear layers with weights of 8 or 4 bits: packing and the schedule of a product over threads.
// The layout is told in quantized_table.h.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/cpu/quantized_table.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/device_buffer.h"
#include "kernels/linear_weight.h"

namespace lockstep::cpu {

class QuantizedWeight final : public LinearWeight {
 public:
  // INVALID_ARGUMENT, RESOURCE_EXHAUSTED as Backend::AllocateLinear. kernels must outlive it.
  static absl::StatusOr<std::unique_ptr<QuantizedWeight>> Allocate(
      const LinearShape& shape, const VectorKernels& kernels, const WeightAllocator& allocator);

  int64_t bytes() const override { return buffer_.bytes(); }
  // Thread-safe over disjoint rows, and over the values and the scales of the same ones.
  void Fill(int64_t first_row, const HostRows& rows);

  int bits() const { return QuantizedBits(shape().quantization); }
  int64_t num_panels() const {
    return (shape().out_features + kQuantizedColumns - 1) / kQuantizedColumns;
  }
  const QuantizedGroups& groups() const { return groups_; }
  int64_t slice_bytes() const { return GroupOffset(groups_.per_slice()); }
  int64_t panel_bytes() const { return slice_bytes() * shape().num_k_slices; }
  // Of group i of a slice in a panel, and in a tile of activations (per row).
  int64_t GroupOffset(int64_t i) const;
  int64_t RowOffset(int64_t i) const;
  int64_t slice_row_bytes() const { return RowOffset(groups_.per_slice()); }
  char* SliceAt(int64_t panel, int64_t slice) const {
    return buffer_.as<char>() + panel * panel_bytes() + slice * slice_bytes();
  }

 private:
  // Rows of the checkpoint that fall into one panel: `count` of them from `first` on, at `column`.
  struct PanelRows {
    int64_t first;
    int64_t count;
    int64_t panel;
    int64_t column;
  };

  QuantizedWeight(const LinearShape& shape, const VectorKernels& kernels);
  void FillValues(const HostRows& rows, const PanelRows& part);
  void FillQuantized(const HostRows& rows, const PanelRows& part);
  void FillScales(const HostRows& rows, const PanelRows& part);
  void StoreGroup(char* group, int64_t column, const uint8_t* bytes, int64_t count,
                  int64_t padded_k) const;

  const VectorKernels& kernels_;
  QuantizedGroups groups_;
  DeviceBuffer buffer_;
};

// Products with quantized weights. One caller at a time.
class QuantizedRunner {
 public:
  QuantizedRunner(const VectorKernels& kernels, ThreadPool& pool);
  // As LinearRunner::Run.
  void Run(const QuantizedWeight& weight, const float* x, int64_t num_tokens, float* y);

 private:
  struct Product;
  void DivideByTurns(int64_t num_panels);
  Product Plan(const QuantizedWeight& weight, const float* x, int64_t num_tokens, float* y);
  void QuantizeTile(const Product& product, int64_t tile) const;
  void ComputeBlock(const Product& product, int64_t block, int thread);
  const float* AddSlices(const Product& product, const QuantizedBlock& block, int num_panels,
                         int64_t first_panel, int thread) const;
  void StorePanels(const Product& product, const float* sums, int num_panels, int64_t first_panel,
                   int64_t first_row, int num_rows) const;
  void AccumulateSlice(const Product& product, const QuantizedBlock& first, int num_panels,
                       int64_t first_panel, int slice) const;

  const VectorKernels& kernels_;
  const QuantizedKernels& quantized_;
  ThreadPool& pool_;
  Scratch rows_;                       // quantized activations
  std::vector<int64_t> panel_starts_;  // of the blocks of panels, and the end
  std::vector<DeviceBuffer> partial_;  // per thread, a block per level of the tree of K-slices
};

}  // namespace lockstep::cpu
