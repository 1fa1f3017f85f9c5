// The door of liblockstep_cuda.so.
#include <cuda_runtime.h>

#include <map>
#include <memory>
#include <mutex>

#include "kernels/accelerator.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_status.h"
#include "parallel/cuda/nccl_communicator.h"
#include "parallel/cuda/nccl_group.h"
#include "parallel/device_communicators.h"

namespace lockstep::cuda {
namespace {

class CudaCommunicators final : public DeviceCommunicators {
 public:
  absl::StatusOr<std::unique_ptr<Communicator>> Make(Backend& backend, Communicator& host,
                                                     const DeviceGroupOptions& group) override {
    if (host.size() == 1) return MakeSelfCommunicator();
    auto& device = static_cast<CudaBackend&>(backend);
    RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device.options().device), "choosing a GPU"));
    NcclOptions options;
    options.deterministic = device.options().deterministic;
    options.one_shot = group.reduces_often;
    options.notice = group.notice;
    options.siblings = SiblingsOf(device);
    options.forget_graphs = [&device] { device.ForgetSteps(); };
    return MakeNcclCommunicator(host, device.stream(), options);
  }

 private:
  std::shared_ptr<NcclSiblings> SiblingsOf(const CudaBackend& device) {
    std::lock_guard lock(mutex_);
    std::shared_ptr<NcclSiblings>& siblings = siblings_[&device];
    if (siblings == nullptr) siblings = std::make_shared<NcclSiblings>();
    return siblings;
  }

  std::mutex mutex_;
  std::map<const CudaBackend*, std::shared_ptr<NcclSiblings>> siblings_;
};

class CudaAccelerator final : public Accelerator {
 public:
  absl::StatusOr<std::vector<AcceleratorInfo>> Devices() override {
    int count = 0;
    // Without a driver the runtime says that it is too old.
    if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
      return absl::UnavailableError(
          absl::StrCat("no GPU can be used here: ",
                       error == cudaSuccess ? "the driver shows none" : cudaGetErrorString(error),
                       "; does nvidia-smi show one?"));
    }
    std::vector<AcceleratorInfo> devices;
    for (int device = 0; device < count; ++device) {
      cudaDeviceProp properties = {};
      RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, device), "asking a GPU"));
      devices.push_back({properties.name, static_cast<int64_t>(properties.totalGlobalMem)});
    }
    return devices;
  }

  absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const AcceleratorOptions& options) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, CudaBackend::Create(options));
    return backend;
  }

  DeviceCommunicators& communicators() override { return communicators_; }

 private:
  CudaCommunicators communicators_;
};

}  // namespace
}  // namespace lockstep::cuda

extern "C" __attribute__((visibility("default"))) const lockstep::AcceleratorPlugin*
lockstep_plugin() {
  static lockstep::cuda::CudaAccelerator accelerator;
  static const lockstep::AcceleratorPlugin plugin = {LOCKSTEP_ACCELERATOR_BUILD, &accelerator};
  return &plugin;
}
