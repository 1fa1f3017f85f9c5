// Products with packed weights: how one is cut into blocks for the caches and the threads.
//
// Rows are taken in batches whose packed form fits the third-level cache. A task is some rows times
// a few panels; for each block of k it goes over the panels, and over its row tiles for each: the
// rows' block of k stays in the second-level cache, the panel's in the first, the weights come from
// memory once for all rows of the task. Tasks of the same panels lie side by side, so that threads
// share what they read.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/host_memory.h"
#include "kernels/cpu/packed_linear.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/device_buffer.h"

namespace lockstep::cpu {

// One caller at a time.
class LinearRunner {
 public:
  LinearRunner(const VectorKernels& kernels, ThreadPool& pool);
  // y [num_tokens, out_features] = x [num_tokens, in_features] times the weight, as Backend::Linear
  // says.
  void Run(const PackedWeight& weight, const float* x, int64_t num_tokens, float* y);

 private:
  struct Product;
  struct Part {  // of a block
    int64_t first_tile;
    int64_t first_panel;
    int64_t num_panels;
  };
  Product Plan(const PackedWeight& weight, const float* x, int64_t num_rows, float* y) const;
  void RunBatch(const PackedWeight& weight, const float* x, int64_t num_rows, float* y);
  void PackRows(Product& product);
  void PackTile(const Product& product, int64_t tile) const;
  void ComputeBlock(const Product& product, int64_t index, int thread);
  void ComputePanels(const Product& product, const Part& part, float* partial) const;
  void AccumulateSlice(const Product& product, const Part& part, int slice, GemmBlock block) const;

  const VectorKernels& kernels_;
  ThreadPool& pool_;
  Scratch rows_;  // packed activations
  std::vector<DeviceBuffer>
      partial_;  // per thread: partial sums of K-slices, one block per level of the tree
};

}  // namespace lockstep::cpu
