// Which kernel works on prefill chunks: by mma.sync or, on Hopper, by wgmma.
//
// The second must earn its place when the backend starts: over a made-up batch its results must be
// the first's within rounding, and it must be faster. So whatever may be wrong with it, on a device
// it has not met, costs speed and no answers.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/kernels.h"

namespace lockstep::cuda {

// Of a trial: a long chunk, a short one and a decode, over blocks in no order; groups of four
// heads.
struct ChunkTrial {
  DType kv_dtype = DType::kBF16;  // or kF16
  int head_dim = 0;               // 64 or 128
  int block_size = 16;
  int num_kv_heads = 1;
  int chunk = 0;    // tokens of the long one
  int context = 0;  // of the long one, with them
  int repeats = 1;  // of what is timed

  // One that fills the device for a while, and its second-level cache not.
  static ChunkTrial For(int head_dim, int num_multiprocessors);
};
struct ChunkVerdict {
  std::string wrong;  // what is wrong with wgmma, or "", and then:
  double wgmma_flops_per_s = 0;
  double mma_flops_per_s = 0;

  bool prefers_wgmma() const { return wrong.empty() && wgmma_flops_per_s > mma_flops_per_s; }
};
// Where it is tried.
struct TrialGround {
  TensorMapEncoder encode;
  AttentionWorkspace workspace;
  cudaStream_t stream;
};
// They wait for the stream. The error of a device that cannot be used any more.
absl::StatusOr<ChunkVerdict> TryWgmma(const ChunkTrial& trial, const TrialGround& ground);
// ChunkVerdict::wrong alone.
absl::StatusOr<std::string> CheckWgmma(const ChunkTrial& trial, const TrialGround& ground);
// Of blocks of other sizes than a trial's, each of which is a box of another shape.
struct OtherBlocks {
  std::vector<int> right;  // sizes
  std::string wrong;       // what is wrong with others: ", over blocks of 64 by mma.sync (...)"
};
absl::StatusOr<OtherBlocks> CheckOtherBlocks(DType kv_dtype, int head_dim,
                                             const TrialGround& ground);

class ChunkKernels {
 public:
  // By mma.sync, whatever the device.
  ChunkKernels() = default;
  // UNAVAILABLE when a trial has broken the device. Its memory and a part of a second pass.
  // kv_dtype: kBF16 or kF16.
  static absl::StatusOr<ChunkKernels> Choose(DType kv_dtype, const cudaDeviceProp& device,
                                             const AttentionWorkspace& workspace,
                                             cudaStream_t stream);

  // For plans over this cache; null: by mma.sync.
  TensorMapEncoder EncoderFor(const KvCacheView& cache) const;
  // "mma.sync", or what was chosen for which heads and why.
  const std::string& description() const { return description_; }

 private:
  // Of one size of heads.
  struct Chosen {
    TensorMapEncoder encode = nullptr;
    std::vector<int> block_sizes;  // with which wgmma is right
  };
  absl::Status ChooseFor(const ChunkTrial& trial, const TrialGround& ground);

  DType kv_dtype_ = DType::kBF16;
  Chosen of_64_;
  Chosen of_128_;
  std::string description_ = "mma.sync";
};

}  // namespace lockstep::cuda
