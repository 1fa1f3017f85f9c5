// Memory of one device or process in another: peer access and CUDA IPC.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/support/cuda_emulation/runtime/device_memory.h"
#include "tests/support/cuda_emulation/runtime/engine.h"
#include "tests/support/cuda_emulation/runtime/runtime_api.h"

namespace lockstep::cuda_emulation {

namespace {

using Kind = DeviceMemory::Kind;

// What a handle holds: a file of the process that made it. No other allocation has its number.
struct Export {
  char mark[16];
  int32_t process;
  int32_t file;
  int32_t device;
  int32_t unused;
  uint64_t inode;
  uint64_t bytes;
};
static_assert(sizeof(Export) <= CUDA_IPC_HANDLE_SIZE);
constexpr char kMark[16] = "emulated memory";

struct Import {
  void* memory;
  int num_opened;
};
// By process and inode.
std::map<std::pair<int32_t, uint64_t>, Import>& Imports() {
  static auto* imports = new std::map<std::pair<int32_t, uint64_t>, Import>;
  return *imports;
}

uint64_t InodeOf(int file) {
  struct stat status = {};
  return fstat(file, &status) == 0 ? status.st_ino : 0;
}

bool IsDevice(int device) { return device >= 0 && device < TheEngine().device.num_devices; }

// What the exporter's file is now; -1 when it is gone, with or without its process.
int OpenFile(const Export& exported) {
  const std::string path = absl::StrCat("/proc/", exported.process, "/fd/", exported.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file >= 0 && InodeOf(file) != exported.inode) {
    close(file);
    return -1;
  }
  return file;
}

cudaError_t Open(const Export& exported, void** memory) {
  if (std::memcmp(exported.mark, kMark, sizeof(kMark)) != 0) return cudaErrorInvalidValue;
  if (exported.process == getpid()) return cudaErrorDeviceUninitialized;
  if (exported.device != CurrentDevice() && !TheEngine().device.reach_each_other) {
    return cudaErrorPeerAccessUnsupported;
  }
  const std::pair key(exported.process, exported.inode);
  if (const auto found = Imports().find(key); found != Imports().end()) {
    ++found->second.num_opened;
    *memory = found->second.memory;
    return cudaSuccess;
  }
  const int file = OpenFile(exported);
  if (file < 0) return cudaErrorInvalidResourceHandle;
  const cudaError_t error = TheDeviceMemory().Import(file, exported.bytes, CurrentDevice(), memory);
  if (error != cudaSuccess) {
    close(file);
  } else {
    Imports()[key] = {*memory, 1};
  }
  return error;
}

}  // namespace

}  // namespace lockstep::cuda_emulation

using namespace lockstep::cuda_emulation;

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return Call([&](auto&) {
    if (!IsDevice(device) || !IsDevice(peer)) return cudaErrorInvalidDevice;
    *can = device != peer && TheEngine().device.reach_each_other ? 1 : 0;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int device,
                                      int peer) {
  return Call([&](auto&) {
    if (!IsDevice(device) || !IsDevice(peer) || device == peer) return cudaErrorInvalidDevice;
    if (attribute < cudaDevP2PAttrAccessSupported) return cudaErrorInvalidValue;
    *value = TheEngine().device.reach_each_other ? 1 : 0;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return Call([&](auto&) {
    static auto* enabled = new std::set<std::pair<int, int>>;
    if (flags != 0) return cudaErrorInvalidValue;
    if (!IsDevice(peer) || peer == CurrentDevice()) return cudaErrorInvalidDevice;
    if (!TheEngine().device.reach_each_other) return cudaErrorPeerAccessUnsupported;
    return enabled->insert({CurrentDevice(), peer}).second ? cudaSuccess
                                                           : cudaErrorPeerAccessAlreadyEnabled;
  });
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  return Call([&](auto&) {
    if (!TheEngine().device.has_ipc) return cudaErrorNotSupported;
    const DeviceMemory::Region* region = TheDeviceMemory().Find(memory);
    if (handle == nullptr || region == nullptr || region->begin != memory ||
        region->kind != Kind::kDevice) {
      return cudaErrorInvalidValue;
    }
    if (region->file < 0) {
      std::fprintf(stderr, "CUDA emulation: %zu bytes are exported, no multiple of 2 MiB\n",
                   region->bytes);
      return cudaErrorInvalidValue;
    }
    Export exported = {
        {}, getpid(), region->file, region->device, 0, InodeOf(region->file), region->bytes};
    std::memcpy(exported.mark, kMark, sizeof(kMark));
    *handle = {};
    std::memcpy(handle->reserved, &exported, sizeof(exported));
    TheEngine().KeepGoing();
    return cudaSuccess;
  });
}

cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned flags) {
  return Call([&](auto&) {
    if (memory == nullptr || flags != cudaIpcMemLazyEnablePeerAccess) return cudaErrorInvalidValue;
    if (!TheEngine().device.has_ipc) return cudaErrorNotSupported;
    Export exported;
    std::memcpy(&exported, handle.reserved, sizeof(exported));
    TheEngine().KeepGoing();
    return Open(exported, memory);
  });
}

// Unlike cudaFree it waits for nothing: kernels that still use the memory crash. After a failure
// memory can still be closed.
cudaError_t cudaIpcCloseMemHandle(void* memory) {
  const std::lock_guard lock(TheEngine().mutex());
  for (auto import = Imports().begin(); import != Imports().end(); ++import) {
    if (import->second.memory != memory) continue;
    if (--import->second.num_opened > 0) return cudaSuccess;
    Imports().erase(import);
    return Remember(TheDeviceMemory().Free(memory, Kind::kImported));
  }
  return Remember(cudaErrorInvalidValue);
}
