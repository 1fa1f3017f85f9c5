// The devices and their errors; what tests set.
#include <cstdio>
#include <cstring>
#include <utility>

#include "tests/support/cuda_emulation/runtime/block_runner.h"
#include "tests/support/cuda_emulation/runtime/device_memory.h"
#include "tests/support/cuda_emulation/runtime/engine.h"
#include "tests/support/cuda_emulation/runtime/limits.h"
#include "tests/support/cuda_emulation/runtime/runtime_api.h"

namespace lockstep::cuda_emulation {

namespace {

constexpr int kRuntimeVersion = 13000;

thread_local int current_device = 0;
thread_local bool has_chosen_device = false;
thread_local cudaError_t last_error = cudaSuccess;

}  // namespace

int CurrentDevice() { return current_device; }
bool HasChosenDevice() { return has_chosen_device; }

cudaError_t Remember(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

void SetIssue(Issue issue) {
  const std::lock_guard lock(TheEngine().mutex());
  TheEngine().issue = issue;
}
void SetThreadOrder(uint64_t seed) {
  const std::lock_guard lock(TheEngine().mutex());
  TheBlockRunner().SetOrder(seed);
}
void SetDevice(const Device& device) {
  const std::lock_guard lock(TheEngine().mutex());
  TheEngine().device = device;
}
Device PretendedDevice() {
  const std::lock_guard lock(TheEngine().mutex());
  return TheEngine().device;
}
void SetPatience(double seconds) {
  const std::lock_guard lock(TheEngine().mutex());
  TheEngine().patience_seconds = seconds;
}
std::string TakeFailure() {
  const std::lock_guard lock(TheEngine().mutex());
  last_error = cudaSuccess;
  return TheEngine().TakeFailure();
}
int64_t AllocatedBytes() {
  const std::lock_guard lock(TheEngine().mutex());
  int64_t bytes = 0;
  for (int device = 0; device < TheEngine().device.num_devices; ++device) {
    bytes += TheDeviceMemory().allocated_bytes(device);
  }
  return bytes;
}
int64_t NumKernelsRun() {
  const std::lock_guard lock(TheEngine().mutex());
  return TheEngine().num_kernels_run;
}
int64_t NumKernelsBegunEarly() {
  const std::lock_guard lock(TheEngine().mutex());
  return TheEngine().num_kernels_begun_early;
}
int64_t NumProducts() {
  const std::lock_guard lock(TheEngine().mutex());
  return TheEngine().num_products;
}
int64_t NumFastProducts() {
  const std::lock_guard lock(TheEngine().mutex());
  return TheEngine().num_fast_products;
}
int64_t NumProductsAddedInOutput() {
  const std::lock_guard lock(TheEngine().mutex());
  return TheEngine().num_products_added_in_output;
}
int64_t NumWorkInStreams() {
  const std::lock_guard lock(TheEngine().mutex());
  return TheEngine().NumQueued();
}

namespace {

int BusOf(int device) { return TheEngine().device.first_device + device + 1; }

void Describe(int device, cudaDeviceProp* properties) {
  const Device& pretended = TheEngine().device;
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "%s", pretended.name.c_str());
  std::snprintf(properties->uuid.bytes, sizeof(properties->uuid.bytes), "emulated %d",
                pretended.first_device + device);
  properties->totalGlobalMem = static_cast<size_t>(pretended.memory_bytes);
  properties->sharedMemPerBlock = kSharedBytesWithoutAsking;
  properties->sharedMemPerBlockOptin =
      MostSharedBytes(pretended.compute_major, pretended.compute_minor);
  properties->sharedMemPerMultiprocessor =
      SharedBytesOfMultiprocessor(pretended.compute_major, pretended.compute_minor);
  properties->regsPerBlock = 65536;
  properties->warpSize = warpSize;
  properties->maxThreadsPerBlock = kMostThreads;
  std::memcpy(properties->maxThreadsDim, kMostThreadsDim, sizeof(kMostThreadsDim));
  std::memcpy(properties->maxGridSize, kMostBlocksDim, sizeof(kMostBlocksDim));
  properties->major = pretended.compute_major;
  properties->minor = pretended.compute_minor;
  properties->multiProcessorCount = pretended.num_multiprocessors;
  properties->pciBusID = BusOf(device);
  properties->l2CacheSize = pretended.l2_bytes;
  properties->maxThreadsPerMultiProcessor = kMostResidentThreads;
}

cudaError_t Attribute(const cudaDeviceProp& properties, cudaDeviceAttr attribute, int* value) {
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = properties.maxThreadsPerBlock;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(properties.sharedMemPerBlock);
      break;
    case cudaDevAttrWarpSize:
      *value = properties.warpSize;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      break;
    case cudaDevAttrL2CacheSize:
      *value = properties.l2CacheSize;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = properties.maxThreadsPerMultiProcessor;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(properties.sharedMemPerMultiprocessor);
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

bool IsDevice(int device) { return device >= 0 && device < TheEngine().device.num_devices; }

}  // namespace

}  // namespace lockstep::cuda_emulation

using namespace lockstep::cuda_emulation;

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaGetDeviceCount(int* count) {
  return Call([&](auto&) {
    if (TheEngine().device.driver_version < kRuntimeVersion) return cudaErrorInsufficientDriver;
    *count = TheEngine().device.num_devices;
    return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
  });
}
cudaError_t cudaSetDevice(int device) {
  return Call([&](auto&) {
    if (!IsDevice(device)) return cudaErrorInvalidDevice;
    current_device = device;
    has_chosen_device = true;
    return cudaSuccess;
  });
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return Call([&](auto&) {
    if (!IsDevice(device)) return cudaErrorInvalidDevice;
    Describe(device, properties);
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return Call([&](auto&) {
    if (!IsDevice(device)) return cudaErrorInvalidDevice;
    cudaDeviceProp properties;
    Describe(device, &properties);
    return Attribute(properties, attribute, value);
  });
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  return Call([&](auto&) {
    if (!IsDevice(device)) return cudaErrorInvalidDevice;
    std::snprintf(id, static_cast<size_t>(length), "0000:%02x:00.0", BusOf(device));
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* id) {
  return Call([&](auto&) {
    unsigned bus = 0;
    if (id == nullptr || std::sscanf(id, "0000:%x:00.0", &bus) != 1) return cudaErrorInvalidValue;
    const int found = static_cast<int>(bus) - BusOf(0);
    if (!IsDevice(found)) return cudaErrorInvalidDevice;
    *device = found;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceSynchronize() {
  return Call([&](auto& lock) {
    const cudaError_t error = TheEngine().RefuseWhileCapturing();
    return error != cudaSuccess ? error : TheEngine().AwaitDevice(lock, current_device);
  });
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = TheEngine().device.driver_version;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kRuntimeVersion;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return Call([&](auto&) {
    const int64_t total = TheEngine().device.memory_bytes;
    *total_bytes = static_cast<size_t>(total);
    *free_bytes = static_cast<size_t>(total - TheDeviceMemory().allocated_bytes(current_device));
    return cudaSuccess;
  });
}
