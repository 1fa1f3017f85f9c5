// Memory and copies.
#include <cstdio>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/cuda_emulation/runtime/device_memory.h"
#include "tests/support/cuda_emulation/runtime/engine.h"
#include "tests/support/cuda_emulation/runtime/runtime_api.h"

namespace lockstep::cuda_emulation {

namespace {

using Kind = DeviceMemory::Kind;

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};

// What lies on the device must lie within one allocation; what lies on the host must not.
cudaError_t CheckSide(const void* memory, size_t bytes, bool on_device, const char* what) {
  const DeviceMemory& device = TheDeviceMemory();
  if (bytes == 0) return cudaSuccess;
  if (memory != nullptr && device.OnDevice(memory) == on_device &&
      (!on_device || device.Holds(memory, bytes))) {
    return cudaSuccess;
  }
  std::fprintf(stderr, "CUDA emulation: %s (%zu bytes at %p) is not within memory of the %s\n",
               what, bytes, memory, on_device ? "device" : "host");
  return cudaErrorInvalidValue;
}

cudaError_t CheckCopy(const Copy& copy, cudaMemcpyKind kind) {
  if (kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  const bool to_device = kind == cudaMemcpyDefault
                             ? TheDeviceMemory().OnDevice(copy.to)
                             : kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDefault ? TheDeviceMemory().OnDevice(copy.from)
                                                     : kind >= cudaMemcpyDeviceToHost;
  const cudaError_t error = CheckSide(copy.to, copy.bytes, to_device, "a copy's destination");
  if (error != cudaSuccess) return error;
  return CheckSide(copy.from, copy.bytes, from_device, "a copy's source");
}

cudaError_t IssueCopy(const Copy& copy, cudaMemcpyKind kind, CUstream_st& stream) {
  if (copy.bytes == 0) return cudaSuccess;
  if (const cudaError_t error = CheckCopy(copy, kind); error != cudaSuccess) return error;
  return TheEngine().Issue(stream, "a copy",
                           Once([copy] { std::memmove(copy.to, copy.from, copy.bytes); }));
}

cudaError_t IssueSet(void* memory, int byte, size_t bytes, CUstream_st& stream) {
  if (bytes == 0) return cudaSuccess;
  const cudaError_t error = CheckSide(memory, bytes, true, "what is set");
  if (error != cudaSuccess) return error;
  return TheEngine().Issue(stream, "memset", Once([=] { std::memset(memory, byte, bytes); }));
}

// On the default stream; refused while something captures.
template <typename Body>
cudaError_t OnDefaultStream(Body body) {
  return Call([&](auto& lock) {
    std::shared_ptr<CUstream_st> stream;
    cudaError_t error = TheEngine().RefuseWhileCapturing();
    if (error == cudaSuccess) error = TheEngine().Find(nullptr, &stream);
    return error != cudaSuccess ? error : body(lock, *stream);
  });
}

// From memory that is not pinned to the device: returns once the source is read, when the
// destination may not be written yet.
// Source: CUDA Runtime API, "API synchronization behavior".
bool ReturnsEarly(const Copy& copy, cudaMemcpyKind kind) {
  const DeviceMemory& memory = TheDeviceMemory();
  return (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDefault) &&
         memory.OnDevice(copy.to) && memory.Find(copy.from) == nullptr;
}

// Between a device and memory that is not pinned, a copy that is called asynchronous may hold the
// host until the stream has come to it: one to the host always returns at its end, one to the
// device may be staged meanwhile. Here that depends on the size, as both are allowed.
// Source: CUDA Runtime API, "API synchronization behavior".
bool HoldsHost(const Copy& copy) {
  const DeviceMemory& memory = TheDeviceMemory();
  if (copy.bytes == 0) return false;
  if (memory.OnDevice(copy.from)) return memory.Find(copy.to) == nullptr;
  constexpr size_t kMostStaged = 64 * 1024;
  return copy.bytes > kMostStaged && memory.OnDevice(copy.to) && memory.Find(copy.from) == nullptr;
}

cudaError_t IssueCopyOfSource(const Copy& copy, cudaMemcpyKind kind, CUstream_st& stream) {
  if (copy.bytes == 0) return cudaSuccess;
  if (const cudaError_t error = CheckCopy(copy, kind); error != cudaSuccess) return error;
  const auto* from = static_cast<const char*>(copy.from);
  return TheEngine().Issue(stream, "a copy",
                           Once([to = copy.to, bytes = std::vector<char>(from, from + copy.bytes)] {
                             std::memcpy(to, bytes.data(), bytes.size());
                           }));
}

template <typename Issue>
cudaError_t IssueTo(cudaStream_t handle, Issue issue) {
  return Call([&](auto&) {
    std::shared_ptr<CUstream_st> stream;
    const cudaError_t error = TheEngine().Find(handle, &stream);
    return error != cudaSuccess ? error : issue(*stream);
  });
}

cudaError_t Allocate(void** memory, size_t bytes, Kind kind) {
  return Call([&](auto&) {
    if (memory == nullptr) return cudaErrorInvalidValue;
    const cudaError_t error = TheEngine().RefuseWhileCapturing();
    if (error != cudaSuccess) return error;
    return TheDeviceMemory().Allocate(bytes, kind, CurrentDevice(), TheEngine().device.memory_bytes,
                                      memory);
  });
}

// Undefined with a GPU, and so a failure here: what another process has opened must be closed there
// first (CUDA Runtime API, cudaIpcOpenMemHandle).
cudaError_t RefuseIfOpenElsewhere(const void* memory) {
  const DeviceMemory::Region* region = TheDeviceMemory().Find(memory);
  if (region == nullptr || !DeviceMemory::IsOpenElsewhere(*region)) return cudaSuccess;
  TheEngine().Fail(absl::StrCat("cudaFree of ", region->bytes,
                                " bytes that another process has open (cudaIpcOpenMemHandle)"));
  return TheEngine().error();
}

// Waits for the device, as the real one does. After a failure memory can still be freed.
cudaError_t Free(void* memory, Kind kind) {
  std::unique_lock lock(TheEngine().mutex());
  if (memory == nullptr) return cudaSuccess;
  cudaError_t error = TheEngine().RefuseWhileCapturing();
  if (error != cudaSuccess) return Remember(error);
  const DeviceMemory::Region* region = TheDeviceMemory().Find(memory);
  if (region == nullptr) return Remember(cudaErrorInvalidValue);
  TheEngine().AwaitDevice(lock, region->device);
  error = RefuseIfOpenElsewhere(memory);
  if (error != cudaSuccess) return Remember(error);
  return Remember(TheDeviceMemory().Free(memory, kind));
}

}  // namespace

}  // namespace lockstep::cuda_emulation

using namespace lockstep::cuda_emulation;

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  return Allocate(memory, bytes, Kind::kDevice);
}
cudaError_t cudaFree(void* memory) { return Free(memory, Kind::kDevice); }
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  return Allocate(memory, bytes, Kind::kPinned);
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  return Allocate(memory, bytes, Kind::kPinned);
}
cudaError_t cudaFreeHost(void* memory) { return Free(memory, Kind::kPinned); }

// Memory is there at once and goes when the stream comes to it.
cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t handle) {
  return IssueTo(handle, [&](CUstream_st& stream) {
    if (memory == nullptr) return cudaErrorInvalidValue;
    if (stream.capture != nullptr) return cudaErrorNotSupported;
    return TheDeviceMemory().Allocate(bytes, Kind::kDevice, CurrentDevice(),
                                      TheEngine().device.memory_bytes, memory);
  });
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t handle) {
  return IssueTo(handle, [&](CUstream_st& stream) {
    if (stream.capture != nullptr) return cudaErrorNotSupported;
    if (!TheDeviceMemory().OnDevice(memory)) return cudaErrorInvalidValue;
    return TheEngine().Issue(stream, "freeing",
                             Once([=] { TheDeviceMemory().Free(memory, Kind::kDevice); }));
  });
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  return Call([&](auto&) {
    const DeviceMemory::Region* region = TheDeviceMemory().Find(host);
    if (region == nullptr || region->kind == Kind::kDevice) return cudaErrorInvalidValue;
    *device = host;
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return OnDefaultStream([&](auto& lock, CUstream_st& stream) {
    const Copy copy = {to, from, bytes};
    if (ReturnsEarly(copy, kind)) {  // once what was issued before has been done
      const cudaError_t error = TheEngine().Await(lock, stream, stream.issued);
      return error != cudaSuccess ? error : IssueCopyOfSource(copy, kind, stream);
    }
    const cudaError_t error = IssueCopy(copy, kind, stream);
    return error != cudaSuccess ? error : TheEngine().Await(lock, stream, stream.issued);
  });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t handle) {
  return Call([&](auto& lock) {
    const Copy copy = {to, from, bytes};
    std::shared_ptr<CUstream_st> stream;
    cudaError_t error = TheEngine().Find(handle, &stream);
    if (error == cudaSuccess) error = IssueCopy(copy, kind, *stream);
    if (error != cudaSuccess || stream->capture != nullptr || !HoldsHost(copy)) return error;
    return TheEngine().Await(lock, *stream, stream->issued);
  });
}
// Asynchronous with respect to the host (CUDA Runtime API, "API synchronization behavior"), and
// streams that are non-blocking do not wait for it either.
cudaError_t cudaMemset(void* memory, int byte, size_t bytes) {
  return OnDefaultStream(
      [&](auto&, CUstream_st& stream) { return IssueSet(memory, byte, bytes, stream); });
}
cudaError_t cudaMemsetAsync(void* memory, int byte, size_t bytes, cudaStream_t handle) {
  return IssueTo(handle,
                 [&](CUstream_st& stream) { return IssueSet(memory, byte, bytes, stream); });
}
