// CpuBackend: the contract of kernels/backend.h with vector kernels and threads. One step-loop
// thread calls it.
#pragma once

#include <memory>
#include <string>

#include "kernels/backend_args.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/host_backend.h"
#include "kernels/cpu/linear_runner.h"
#include "kernels/cpu/quantized_linear.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/device_buffer.h"
#include "kernels/dtype.h"
#include "kernels/kv_cache_view.h"
#include "kernels/linear_weight.h"

namespace lockstep::cpu {

class CpuBackend : public HostBackend {
 public:
  // The table must be one that this processor can run. num_threads >= 1, the caller included.
  CpuBackend(const VectorKernels& kernels, int num_threads);

  std::string Description() const override;

  absl::StatusOr<DeviceBuffer> Allocate(int64_t bytes) override;

  absl::StatusOr<std::unique_ptr<LinearWeight>> AllocateLinear(const LinearShape& shape) override;
  void FillLinear(LinearWeight& weight, int64_t first_row, const HostRows& rows) override;
  std::string WeightLayout() const override;
  void PlaceWeights(WeightAllocator allocator) override;

  void Embed(const EmbedArgs& args) override;
  void AddRmsNorm(const RmsNormArgs& args) override;
  void Linear(const LinearWeight& weight, const void* x, int64_t num_tokens, float* y) override;
  void SiluMul(const SiluMulArgs& args) override;
  void RopeAndWriteKv(const RopeArgs& args) override;
  void Attention(const AttentionArgs& args) override;
  void Add(float* dst, const void* src, DType src_dtype, int64_t count) override;

 private:
  // body(begin, end) over [0, count) in pieces of about `grain`, on all threads when there is more
  // than one piece.
  template <typename Body>
  void ForRanges(int64_t count, int64_t grain, Body&& body);
  // In place; nothing where there is no weight.
  void NormHeads(const float* weight, float eps, int count, int64_t head_dim, float* heads) const;
  void RotateToken(const RopeArgs& args, int64_t token);
  void Round(const float* from, int64_t count, DType dtype, float scale, void* to) const;
  template <typename Word>
  void WriteKeys(const KvCacheView& cache, int64_t slot, const float* heads) const;
  void WriteValues(const KvCacheView& cache, int64_t slot, const float* heads) const;

  const VectorKernels& kernels_;
  ThreadPool pool_;
  LinearRunner linear_;
  QuantizedRunner quantized_;
  AttentionRunner attention_;
  WeightAllocator allocator_ = AllocateHost;
};

}  // namespace lockstep::cpu
