// A CudaBackend whose copies between host and device can be marked on its stream, for those who
// measure how long it waits for them.
#pragma once

#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/gpu/device_event.h"

namespace lockstep::bench {

struct MarkedCopy {
  DeviceEvent begin;
  DeviceEvent end;
};

// One thread's, as a stage is. Copies are marked as they are issued, never those of loader threads
// before the first MarkCopiesIn.
class MarkingBackend final : public Backend {
 public:
  explicit MarkingBackend(cuda::CudaBackend& backend) : backend_(backend) {}

  // Of copies from now on; null: of none. Must outlive what is marked in it.
  void MarkCopiesIn(std::vector<MarkedCopy>* copies) { copies_ = copies; }

  void CopyToDevice(void* device, const void* host, int64_t bytes) override {
    Marked(bytes, [&] { backend_.CopyToDevice(device, host, bytes); });
  }
  void StartCopyToHost(void* host, const void* device, int64_t bytes) override {
    Marked(bytes, [&] { backend_.StartCopyToHost(host, device, bytes); });
  }
  void CopyToHost(void* host, const void* device, int64_t bytes) override {
    Marked(bytes, [&] { backend_.CopyToHost(host, device, bytes); });
  }

  std::string Description() const override { return backend_.Description(); }
  DType LinearInput() const override { return backend_.LinearInput(); }
  DType ProductDType(int64_t num_tokens) const override {
    return backend_.ProductDType(num_tokens);
  }
  bool HoldsFp8(int64_t out_features, int64_t in_features) const override {
    return backend_.HoldsFp8(out_features, in_features);
  }
  absl::StatusOr<DeviceBuffer> Allocate(int64_t bytes) override { return backend_.Allocate(bytes); }
  void Synchronize() override { backend_.Synchronize(); }
  int64_t AvailableBytes() const override { return backend_.AvailableBytes(); }
  absl::StatusOr<DeviceBuffer> AllocateOnHost(int64_t bytes) override {
    return backend_.AllocateOnHost(bytes);
  }
  absl::StatusOr<std::unique_ptr<LinearWeight>> AllocateLinear(const LinearShape& shape) override {
    return backend_.AllocateLinear(shape);
  }
  void FillLinear(LinearWeight& weight, int64_t first_row, const HostRows& rows) override {
    backend_.FillLinear(weight, first_row, rows);
  }
  std::string WeightLayout() const override { return backend_.WeightLayout(); }
  void PlaceWeights(WeightAllocator allocator) override {
    backend_.PlaceWeights(std::move(allocator));
  }
  void Embed(const EmbedArgs& args) override { backend_.Embed(args); }
  void AddRmsNorm(const RmsNormArgs& args) override { backend_.AddRmsNorm(args); }
  std::array<RowArray, 2> RowsToGather(void* out, int64_t hidden) const override {
    return backend_.RowsToGather(out, hidden);
  }
  void Linear(const LinearWeight& weight, const void* x, int64_t num_tokens, float* y) override {
    backend_.Linear(weight, x, num_tokens, y);
  }
  void RoundedLinear(const LinearWeight& weight, const void* x, int64_t num_tokens,
                     void* y) override {
    backend_.RoundedLinear(weight, x, num_tokens, y);
  }
  void SiluMul(const SiluMulArgs& args) override { backend_.SiluMul(args); }
  void RopeAndWriteKv(const RopeArgs& args) override { backend_.RopeAndWriteKv(args); }
  void Attention(const AttentionArgs& args) override { backend_.Attention(args); }
  void GatherRows(const void* in, const int32_t* rows, int64_t num_rows, int64_t row_bytes,
                  void* out) override {
    backend_.GatherRows(in, rows, num_rows, row_bytes, out);
  }
  void Add(float* dst, const void* src, DType src_dtype, int64_t count) override {
    backend_.Add(dst, src, src_dtype, count);
  }
  bool SummarizesLogits() const override { return backend_.SummarizesLogits(); }
  void SummarizeLogits(const LogitsSummaryArgs& args) override { backend_.SummarizeLogits(args); }
  void ChooseTokens(const TokenChoiceArgs& args) override { backend_.ChooseTokens(args); }
  void TakeChosenTokens(const ChosenToken* chosen, const int32_t* sources, int64_t num_tokens,
                        int32_t* ids) override {
    backend_.TakeChosenTokens(chosen, sources, num_tokens, ids);
  }
  void PlaceChosenTokens(const ChosenToken* chosen, const int32_t* places, int64_t count,
                         ChosenToken* table) override {
    backend_.PlaceChosenTokens(chosen, places, count, table);
  }
  absl::StatusOr<std::unique_ptr<WorkMark>> MakeMark() override { return backend_.MakeMark(); }
  absl::Status Repeat(uint64_t key, const std::function<absl::Status()>& body) override {
    return backend_.Repeat(key, body);
  }
  bool KeepsSteps() const override { return backend_.KeepsSteps(); }
  void ForgetSteps() override { backend_.ForgetSteps(); }

  const cuda::KernelStream& stream() const { return backend_.stream(); }

 private:
  template <typename Copy>
  void Marked(int64_t bytes, const Copy& copy) {
    if (copies_ == nullptr || bytes <= 0) return copy();
    MarkedCopy& marked = copies_->emplace_back();
    marked.begin.Record(stream());
    copy();
    marked.end.Record(stream());
  }

  cuda::CudaBackend& backend_;
  std::vector<MarkedCopy>* copies_ = nullptr;
};

}  // namespace lockstep::bench
