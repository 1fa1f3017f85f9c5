// What errors are called.
#include "tests/support/cuda_emulation/runtime/runtime_api.h"

#define LOCKSTEP_NAME(error) \
  case error:                \
    return #error

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    LOCKSTEP_NAME(cudaSuccess);
    LOCKSTEP_NAME(cudaErrorInvalidValue);
    LOCKSTEP_NAME(cudaErrorMemoryAllocation);
    LOCKSTEP_NAME(cudaErrorInitializationError);
    LOCKSTEP_NAME(cudaErrorInvalidConfiguration);
    LOCKSTEP_NAME(cudaErrorInvalidMemcpyDirection);
    LOCKSTEP_NAME(cudaErrorInsufficientDriver);
    LOCKSTEP_NAME(cudaErrorInvalidDeviceFunction);
    LOCKSTEP_NAME(cudaErrorNoDevice);
    LOCKSTEP_NAME(cudaErrorInvalidDevice);
    LOCKSTEP_NAME(cudaErrorInvalidKernelImage);
    LOCKSTEP_NAME(cudaErrorDeviceUninitialized);
    LOCKSTEP_NAME(cudaErrorMapBufferObjectFailed);
    LOCKSTEP_NAME(cudaErrorPeerAccessUnsupported);
    LOCKSTEP_NAME(cudaErrorNoKernelImageForDevice);
    LOCKSTEP_NAME(cudaErrorECCUncorrectable);
    LOCKSTEP_NAME(cudaErrorUnsupportedPtxVersion);
    LOCKSTEP_NAME(cudaErrorInvalidPtx);
    LOCKSTEP_NAME(cudaErrorJitCompilerNotFound);
    LOCKSTEP_NAME(cudaErrorJitCompilationDisabled);
    LOCKSTEP_NAME(cudaErrorInvalidResourceHandle);
    LOCKSTEP_NAME(cudaErrorIllegalState);
    LOCKSTEP_NAME(cudaErrorNotReady);
    LOCKSTEP_NAME(cudaErrorIllegalAddress);
    LOCKSTEP_NAME(cudaErrorPeerAccessAlreadyEnabled);
    LOCKSTEP_NAME(cudaErrorHostMemoryAlreadyRegistered);
    LOCKSTEP_NAME(cudaErrorHostMemoryNotRegistered);
    LOCKSTEP_NAME(cudaErrorLaunchFailure);
    LOCKSTEP_NAME(cudaErrorNotSupported);
    LOCKSTEP_NAME(cudaErrorStreamCaptureUnsupported);
    LOCKSTEP_NAME(cudaErrorStreamCaptureInvalidated);
    LOCKSTEP_NAME(cudaErrorStreamCaptureMerge);
    LOCKSTEP_NAME(cudaErrorStreamCaptureUnmatched);
    LOCKSTEP_NAME(cudaErrorStreamCaptureUnjoined);
    LOCKSTEP_NAME(cudaErrorStreamCaptureIsolation);
    LOCKSTEP_NAME(cudaErrorStreamCaptureImplicit);
    LOCKSTEP_NAME(cudaErrorCapturedEvent);
    LOCKSTEP_NAME(cudaErrorStreamCaptureWrongThread);
  }
  return "unrecognized error code";
}

// Where the real one's words are not known, the name.
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorPeerAccessUnsupported:
      return "peer access is not supported between these two devices";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    case cudaErrorECCUncorrectable:
      return "uncorrectable ECC error encountered";
    case cudaErrorUnsupportedPtxVersion:
      return "the provided PTX was compiled with an unsupported toolchain.";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorNotSupported:
      return "operation not supported";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    default:
      return cudaGetErrorName(error);
  }
}
