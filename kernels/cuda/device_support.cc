#include "kernels/cuda/device_support.h"

#include "absl/strings/str_cat.h"
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

}  // namespace lockstep::cuda
