#include "kernels/cuda/device_support.h"

#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/kernel_stream.h"

namespace lockstep::cuda {
namespace {

constexpr int kLeastMajor = 8;  // CMakeLists.txt: CUDA_ARCHITECTURES

std::string Named(const cudaDeviceProp& properties) {
  return absl::StrCat(properties.name, " of compute capability ", properties.major, ".",
                      properties.minor);
}

// As NVIDIA writes it, from 1000 * major + 10 * minor.
std::string CudaVersion(int number) {
  return absl::StrCat("CUDA ", number / 1000, ".", number % 1000 / 10);
}

// Of kernels that the device or its driver does not take, as opposed to one that fails, or is full.
bool IsOfCompilation(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidKernelImage:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidPtx:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorJitCompilationDisabled:
      return true;
    default:
      return false;
  }
}

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
                               : absl::StrCat("; the driver is for ", CudaVersion(driver)),
                   ", the plugin was built with ", CudaVersion(runtime));
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr) {
    absl::StrAppend(&text, "; CUDA_VISIBLE_DEVICES is '", visible, "'");
  }
  absl::StrAppend(&text, error == cudaErrorInsufficientDriver && driver != 0
                             ? "; install a later driver, or build with an earlier CUDA"
                             : "; does nvidia-smi show one?");
  return absl::UnavailableError(text);
}

}  // namespace

std::string WhyTooOld(const cudaDeviceProp& properties) {
  if (properties.major >= kLeastMajor) return "";
  return absl::StrCat(Named(properties), " is too old: kernels are compiled for ", kLeastMajor,
                      ".0 and later");
}

absl::Status CheckKernelsRun(const cudaDeviceProp& properties) {
  if (const std::string why = WhyTooOld(properties); !why.empty()) {
    return absl::FailedPreconditionError(why);
  }
  const cudaError_t error = FindKernels();
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();  // it has been told
  if (!IsOfCompilation(error)) return CudaStatus(error, "loading the kernels");
  int driver = 0;
  int built_with = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&built_with);
  return absl::FailedPreconditionError(
      absl::StrCat(Named(properties), " does not run this build's kernels (",
                   cudaGetErrorString(error), "): they are compiled for 8.0 to 8.9 and 9.0, and ",
                   "for later ones by the driver; this one knows ", CudaVersion(driver),
                   ", the build is of ", CudaVersion(built_with), ": update the driver"));
}

absl::StatusOr<std::vector<AcceleratorInfo>> ListDevices() {
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

}  // namespace lockstep::cuda
