// The door of liblockstep_cuda.so.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
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

absl::StatusOr<DeviceLink> LinkBetween(int device, int peer) {
  int can = 0;
  int has_atomics = 0;
  if (device == peer) return DeviceLink::kNone;
  RETURN_IF_ERROR(CudaStatus(cudaDeviceCanAccessPeer(&can, device, peer), "asking a GPU"));
  if (can == 0) return DeviceLink::kNone;
  RETURN_IF_ERROR(CudaStatus(
      cudaDeviceGetP2PAttribute(&has_atomics, cudaDevP2PAttrNativeAtomicSupported, device, peer),
      "asking a GPU"));
  return has_atomics != 0 ? DeviceLink::kNvLink : DeviceLink::kPeerAccess;
}

std::string UuidOf(const cudaDeviceProp& properties) {
  return absl::BytesToHexString(
      absl::string_view(properties.uuid.bytes, sizeof(properties.uuid.bytes)));
}

absl::StatusOr<AcceleratorInfo> Describe(int device, int num_devices) {
  cudaDeviceProp properties = {};
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, device), "asking a GPU"));
  char bus_id[32] = {};
  RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), device), "asking a GPU"));
  const int capability = 10 * properties.major + properties.minor;
  AcceleratorInfo info = {.name = properties.name,
                          .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
                          .refusal = WhyTooOld(properties),
                          .multiplies_fp8 = capability >= CudaBackend::kFp8Capability,
                          .pci_bus_id = absl::AsciiStrToLower(bus_id),
                          .uuid = UuidOf(properties),
                          .links = {}};
  for (int peer = 0; peer < num_devices; ++peer) {
    ASSIGN_OR_RETURN(const DeviceLink link, LinkBetween(device, peer));
    info.links.push_back(link);
  }
  return info;
}

// "12.4" of 12040.
std::string ShowVersion(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

// Without a driver the runtime says that it is too old.
absl::Status WhyNone(cudaError_t error) {
  int driver = 0;  // the CUDA that it is for; 0: there is none
  int runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  std::string text =
      absl::StrCat("no GPU can be used here: ",
                   error == cudaSuccess ? "the driver shows none" : cudaGetErrorString(error),
                   driver == 0 ? "; no driver answers"
                               : absl::StrCat("; the driver is for CUDA ", ShowVersion(driver)),
                   ", the plugin was built with CUDA ", ShowVersion(runtime));
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr) {
    absl::StrAppend(&text, "; CUDA_VISIBLE_DEVICES is '", visible, "'");
  }
  absl::StrAppend(&text, error == cudaErrorInsufficientDriver && driver != 0
                             ? "; install a later driver, or build with an earlier CUDA"
                             : "; does nvidia-smi show one?");
  return absl::UnavailableError(text);
}

class CudaAccelerator final : public Accelerator {
 public:
  absl::StatusOr<std::vector<AcceleratorInfo>> Devices() override {
    int count = 0;
    if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
      return WhyNone(error);
    }
    std::vector<AcceleratorInfo> devices;
    for (int device = 0; device < count; ++device) {
      ASSIGN_OR_RETURN(AcceleratorInfo info, Describe(device, count));
      devices.push_back(std::move(info));
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
  static const lockstep::AcceleratorPlugin plugin = {lockstep::Version(), &accelerator};
  return &plugin;
}
