// Steps that repeat, and the copies of a KV cache's blocks between steps.
#include "absl/strings/str_format.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/kernels.h"

namespace lockstep::cuda {

void CudaBackend::OffloadKv(const KvBlockCopies& copies) {
  UseDevice();
  offloads_->Start(copies);
}

void CudaBackend::PrefetchKv(const KvBlockCopies& copies) {
  UseDevice();
  prefetches_->Start(copies);
}

// Kernels that overlap count on what came before their step to be done (kernel_stream.h), so none
// may begin before blocks have come back, or have gone. Between steps BeginStep, which comes next,
// sees to that; the hold here does wherever else this is called.
void CudaBackend::AwaitOffloads() {
  UseDevice();
  offloads_->Await();
  stream_.HoldNext();
}

void CudaBackend::AwaitPrefetches() {
  UseDevice();
  prefetches_->Await();
  stream_.HoldNext();
}

void CudaBackend::RestoreKv(const KvBlockCopies& copies) {
  constexpr int kMostThreadBlocks = 1 << 20;  // more than any device runs at once
  UseDevice();
  CudaCheck(LaunchRestoreKv(copies, kMostThreadBlocks, stream_), "restoring blocks of a KV cache");
  stream_.HoldNext();
}

absl::Status CudaBackend::Repeat(const StepKey& key, const std::function<absl::Status()>& body) {
  return WithoutRows([&] { return recorder_->Repeat(key, body); });
}

absl::Status CudaBackend::Keep(const StepKey& key, const std::function<absl::Status()>& body) {
  const bool had_room = !recorder_->has_left_some();
  RETURN_IF_ERROR(WithoutRows([&] { return recorder_->Keep(key, body); }));
  if (had_room && recorder_->has_left_some() && options_.notice != nullptr) {
    options_.notice(absl::StrFormat(
        "GPU memory is short: %d sizes of steps are recorded, others are issued kernel by kernel "
        "(a smaller --gpu-memory-utilization or --max-num-seqs makes room)",
        recorder_->num_steps()));
  }
  return absl::OkStatus();
}

// A replayed step tells us nothing of its rows: what it quantizes it reads itself, and where they
// lay may hold others afterwards.
absl::Status CudaBackend::WithoutRows(const std::function<absl::Status()>& step) {
  LS_CHECK(!AreRowsToBeRead()) << "rows of before a step wait for a product";
  absl::Status status = step();
  LS_CHECK(!status.ok() || !AreRowsToBeRead()) << "rows of a step wait for a product after it";
  quantized_ = {};
  return status;
}

// A step that ended while rows were gathered leaves them behind.
void CudaBackend::ForgetSteps() {
  recorder_->Forget();
  quantized_ = {};
}

}  // namespace lockstep::cuda
