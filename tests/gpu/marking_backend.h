// A CudaBackend whose copies between host and device can be marked on its stream, for those who
// measure how long it waits for them.
#pragma once

#include <memory>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/gpu/device_event.h"

namespace lockstep::bench {

struct MarkedCopy {
  DeviceEvent begin;
  DeviceEvent end;
};

// One thread's, as a stage is. Copies are marked as they are issued, never those of loader threads
// before the first MarkCopiesIn.
class MarkingBackend final : public cuda::CudaBackend {
 public:
  // CudaBackend::Create.
  static absl::StatusOr<std::unique_ptr<MarkingBackend>> Create(const AcceleratorOptions& options) {
    std::unique_ptr<MarkingBackend> backend(new MarkingBackend(options));
    RETURN_IF_ERROR(backend->Start());
    return backend;
  }

  // Of copies from now on; null: of none. Must outlive what is marked in it.
  void MarkCopiesIn(std::vector<MarkedCopy>* copies) { copies_ = copies; }

  void CopyToDevice(void* device, const void* host, int64_t bytes) override {
    Marked(bytes, [&] { CudaBackend::CopyToDevice(device, host, bytes); });
  }
  // Of both kinds.
  void StartCopyToHost(void* host, const void* device, int64_t bytes) override {
    Marked(bytes, [&] { CudaBackend::StartCopyToHost(host, device, bytes); });
  }

 private:
  using CudaBackend::CudaBackend;

  template <typename Copy>
  void Marked(int64_t bytes, const Copy& copy) {
    if (copies_ == nullptr || bytes <= 0) return copy();
    MarkedCopy& marked = copies_->emplace_back();
    marked.begin.Record(stream());
    copy();
    marked.end.Record(stream());
  }

  std::vector<MarkedCopy>* copies_ = nullptr;
};

}  // namespace lockstep::bench
