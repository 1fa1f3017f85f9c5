// CudaBackend: the contract of kernels/backend.h on one NVIDIA GPU. Everything is issued to one
// stream, in the order of the calls, but what OffloadKv copies, which has a stream of its own.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>

#include "kernels/accelerator.h"
#include "kernels/backend.h"
#include "kernels/cuda/attention_layout.h"
#include "kernels/cuda/chunk_kernels.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/host_staging.h"
#include "kernels/cuda/kernel_stream.h"
#include "kernels/cuda/kv_copy_stream.h"
#include "kernels/cuda/row_loader.h"
#include "kernels/cuda/step_recorder.h"

namespace lockstep::cuda {

class CudaBackend : public Backend {
 public:
  static constexpr int kFp8Capability = 89;  // from which on GPUs multiply e4m3

  // INVALID_ARGUMENT (no such device), FAILED_PRECONDITION (it does not run the kernels),
  // RESOURCE_EXHAUSTED, UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<CudaBackend>> Create(const AcceleratorOptions& options);
  ~CudaBackend() override;

  const KernelStream& stream() const { return stream_; }
  const AcceleratorOptions& options() const { return options_; }

  std::string Description() const override;
  DType LinearInput() const override { return options_.compute; }
  bool HoldsFp8(int64_t out_features, int64_t in_features) const override;
  absl::Status CheckKvCache(const KvCacheView& cache) const override;
  // Rounded in longer steps of bf16.
  DType ProductDType(int64_t num_tokens) const override;
  static constexpr int64_t kMostPlainTokens = 256;

  absl::StatusOr<DeviceBuffer> Allocate(int64_t bytes) override;
  void CopyToDevice(void* device, const void* host, int64_t bytes) override;
  void CopyToHost(void* host, const void* device, int64_t bytes) override;
  void Synchronize() override;
  int64_t AvailableBytes() const override { return std::max<int64_t>(Memory().left_bytes, 0); }
  DeviceMemory Memory() const override;
  absl::StatusOr<DeviceBuffer> AllocateOnHost(int64_t bytes) override;

  absl::StatusOr<std::unique_ptr<LinearWeight>> AllocateLinear(const LinearShape& shape) override;
  void FillLinear(LinearWeight& weight, int64_t first_row, const HostRows& rows) override;
  void FillTable(void* table, DType dtype, int64_t width, const HostRows& rows) override;
  bool TakesPinnedRows() const override { return true; }
  std::string WeightLayout() const override { return ""; }
  void PlaceWeights(WeightAllocator allocator) override;
  int64_t ProductBytes(const ProductInputs& inputs) const override;
  absl::Status ReserveForProducts(int64_t bytes) override;

  void Embed(const EmbedArgs& args) override;
  void AddRmsNorm(const RmsNormArgs& args) override;
  std::array<RowArray, 2> RowsToGather(void* out, int64_t hidden) const override;
  void Linear(const LinearWeight& weight, const void* x, int64_t num_tokens, float* y) override;
  void RoundedLinear(const LinearWeight& weight, const void* x, int64_t num_tokens,
                     void* y) override;
  void SiluMul(const SiluMulArgs& args) override;
  void RopeAndWriteKv(const RopeArgs& args) override;
  void Attention(const AttentionArgs& args) override;
  AttentionLayout LayOutAttention(const AttentionBatch& batch, int num_heads,
                                  const KvCacheView& cache) override;
  int64_t ReserveAttentionWork(const AttentionLimits& limits, int num_heads,
                               const KvCacheView& cache) override;
  void WriteBlockTables(const PlacedBlock* blocks, int64_t count, int32_t* block_tables) override;
  void OffloadKv(const KvBlockCopies& copies) override;
  void AwaitOffloads() override;
  void RestoreKv(const KvBlockCopies& copies) override;
  void PrefetchKv(const KvBlockCopies& copies) override;
  void AwaitPrefetches() override;
  void GatherRows(const void* in, const int32_t* rows, int64_t num_rows, int64_t row_bytes,
                  void* out) override;
  void Add(float* dst, const void* src, DType src_dtype, int64_t count) override;
  bool SummarizesLogits() const override { return true; }
  void SummarizeLogits(const LogitsSummaryArgs& args) override;
  void ChooseTokens(const TokenChoiceArgs& args) override;
  void TakeChosenTokens(const ChosenToken* chosen, const int32_t* sources, int64_t num_tokens,
                        int32_t* ids) override;
  void PlaceChosenTokens(const ChosenToken* chosen, const int32_t* places, int64_t count,
                         ChosenToken* table) override;
  void StartCopyToHost(void* host, const void* device, int64_t bytes) override;
  absl::StatusOr<std::unique_ptr<WorkMark>> MakeMark() override;
  void BeginStep() override { stream_.HoldNext(); }
  absl::Status Repeat(const StepKey& key, const std::function<absl::Status()>& body) override;
  absl::Status Keep(const StepKey& key, const std::function<absl::Status()>& body) override;
  bool KeepsSteps() const override { return options_.keep_steps; }
  void ForgetSteps() override;

 protected:
  // Nothing works before Start.
  explicit CudaBackend(const AcceleratorOptions& options) : options_(options) {}
  absl::Status Start();

 private:
  // A step copies its batch, what is asked of its logits and, with stages, tokens and their places:
  // 4 slots at most, unless blocks of whole prompts' cached prefixes come with it. The host
  // prepares steps before earlier ones are done, so that with slots for one step it would wait for
  // the device. Rows of weights come in chunks, long enough for the bus.
  static constexpr int kStagingSlots = 16;
  static constexpr int64_t kStagingBytes = int64_t{2} << 20;

  void UseDevice() const;  // what the calling thread does from now on is meant for it
  int Capability() const { return 10 * properties_.major + properties_.minor; }
  absl::Status CheckFp8(const LinearShape& shape) const;
  absl::Status WithoutRows(const std::function<absl::Status()>& step);
  AttentionWorkspace Workspace() const;
  AttentionMachine MachineFor(const KvCacheView& cache) const;
  void Multiply(const LinearWeight& weight, const void* x, int64_t num_tokens, void* y,
                DType y_dtype);

  // The rows last quantized for a product, which their bytes do not tell from others.
  struct QuantizedRows {
    const void* data = nullptr;  // null: there are none
    int64_t num_rows = 0;        // that there is room for
    bool is_gathered = false;    // and are not all rows
    const LinearWeight* consumer = nullptr;
    bool is_read = false;  // by the consumer: nobody may read them any more
  };
  // Others are about to be written there.
  void ForgetRows(const void* out) {
    if (quantized_.data == out) quantized_ = {};
  }
  // Asked by who is about to write num_rows of `width` numbers to out, or some of them: whether to
  // quantize them, as E4m3RowsIn.
  bool BeginRows(const void* out, int64_t num_rows, int64_t width, const LinearWeight* consumer);
  Gemm::Input TakeRows(const LinearWeight& weight, const void* x, int64_t num_rows);
  bool AreRowsToBeRead() const { return quantized_.data != nullptr && !quantized_.is_read; }

  const AcceleratorOptions options_;
  cudaDeviceProp properties_ = {};
  KernelStream stream_ = nullptr;
  bool holds_next_ = false;  // the stream's
  std::unique_ptr<HostStaging> staging_;
  std::unique_ptr<RowLoader> row_loader_;
  std::unique_ptr<KvCopyStream> offloads_;
  std::unique_ptr<KvCopyStream> prefetches_;
  std::unique_ptr<Gemm> gemm_;
  std::unique_ptr<StepRecorder> recorder_;
  void* attention_workspace_ = nullptr;
  AttentionWork attention_work_;  // of the batch laid out last
  bool has_loaded_attention_ = false;
  QuantizedRows quantized_;
  Gemm::Origin origin_ = Gemm::Origin::kOther;  // of the next product's rows
  ChunkKernels chunk_kernels_;                  // of attention
  std::atomic<bool> weights_are_new_{false};    // may not have been written yet
  int64_t free_at_start_ = 0;                   // bytes of the device, beside the driver's context
  std::atomic<int64_t> held_bytes_{0};  // of buffers given out, which must not outlive this object
};

}  // namespace lockstep::cuda
