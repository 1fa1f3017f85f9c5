// The door of liblockstep_cuda.so, in the topmost layer that the plugin holds.
#include <cuda_runtime.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/accelerator.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/version.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/device_support.h"
#include "parallel/cuda/nccl_communicator.h"
#include "parallel/cuda/nccl_group.h"
#include "parallel/cuda/pipeline_communicator.h"
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
    if (group.is_pipeline) return MakePipeline(device, host, group);
    NcclOptions options;
    options.deterministic = device.options().deterministic;
    options.own_collectives = group.most_summed_bytes > 0;
    options.connect_bytes = std::min(options.connect_bytes, group.most_summed_bytes);
    options.connects_pairs = group.exchanges_parts;
    options.shares_device = device.options().is_shared;
    options.notice = group.notice;
    options.siblings = SiblingsOf(device);
    options.forget_graphs = [&device] { device.ForgetSteps(); };
    return MakeNcclCommunicator(host, device.stream(), options);
  }

 private:
  absl::StatusOr<std::unique_ptr<Communicator>> MakePipeline(CudaBackend& device,
                                                             Communicator& host,
                                                             const DeviceGroupOptions& group) {
    PipelineOptions options;
    options.siblings = SiblingsOf(device);
    ASSIGN_OR_RETURN(options.from_previous, device.Allocate(group.bytes_from_previous));
    ASSIGN_OR_RETURN(options.to_next, device.Allocate(group.bytes_to_next));
    if (host.rank() == 0 || host.rank() == host.size() - 1) {
      ASSIGN_OR_RETURN(options.way_back, device.Allocate(group.bytes_back));
    }
    return MakePipelineCommunicator(host, device.stream(), std::move(options));
  }

  // The same for all groups that a device has at a time. When the last of them is gone, which is
  // before the device goes, there are none: another device may come to lie at the address.
  std::shared_ptr<NcclSiblings> SiblingsOf(const CudaBackend& device) {
    std::lock_guard lock(mutex_);
    std::erase_if(siblings_, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<NcclSiblings>& known = siblings_[&device];
    std::shared_ptr<NcclSiblings> siblings = known.lock();
    if (siblings == nullptr) known = siblings = std::make_shared<NcclSiblings>();
    return siblings;
  }

  std::mutex mutex_;
  std::map<const CudaBackend*, std::weak_ptr<NcclSiblings>> siblings_;
};

class CudaAccelerator final : public Accelerator {
 public:
  absl::StatusOr<std::vector<AcceleratorInfo>> Devices() override { return ListDevices(); }

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
  static const lockstep::AcceleratorPlugin plugin = {lockstep::Version(), &accelerator};
  return &plugin;
}
