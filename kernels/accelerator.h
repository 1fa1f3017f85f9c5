// Devices that a plugin brings: liblockstep_cuda.so, opened at run time, so that the program starts
// where there is no driver.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/notice.h"
#include "kernels/dtype.h"

namespace lockstep {

class Backend;              // kernels/backend.h
class DeviceCommunicators;  // parallel/device_communicators.h

// How one device's kernels reach the memory of another.
enum class DeviceLink {
  kNone,        // not at all: data takes the way through the host's memory
  kPeerAccess,  // over PCIe
  kNvLink,      // or what else carries atomic operations
};

struct AcceleratorInfo {
  std::string name;               // "NVIDIA H100 80GB HBM3"
  int64_t memory_bytes = 0;       // as the driver tells it
  std::string refusal;            // why MakeBackend will refuse it; empty: nothing known
  bool multiplies_fp8 = false;    // Backend::HoldsFp8 of widths that suit it
  std::string pci_bus_id;         // "0000:1b:00.0", as sysfs writes it
  std::string uuid;               // the same for every process, whichever it is of those it sees
  std::vector<DeviceLink> links;  // to each of the devices; nothing meant for the device itself
};

struct AcceleratorOptions {
  int device = 0;  // among those that the driver shows
  // What matrices are kept and multiplied in: kBF16, kF16 or kF32.
  DType compute = DType::kBF16;
  // The same bits for a token whatever else is in its batch, at the price that
  // kernels/cuda/gemm.h states.
  bool deterministic = false;
  // Backend::KeepsSteps. Without it nothing is padded or recorded: what recorded steps are compared
  // with.
  bool keep_steps = true;
  // Kernels of a step may begin while the one before them runs, where the device can do that: the
  // same results. Without it each waits for the one before: what that is compared with.
  bool overlap_kernels = true;
  // Of the device's memory, what this backend fills at most, libraries and recorded steps included.
  double memory_fraction = 0.9;
  // Others fill it at the same time, and compute there: then only buffers are counted, part of the
  // rest is spared, and ranks do not time what they exchange.
  bool is_shared = false;
  // Gets what operators may want to read, in the calls of those who use the backend. May be null.
  Notice notice = nullptr;
};

class Accelerator {
 public:
  virtual ~Accelerator() = default;
  // UNAVAILABLE, saying why, where there is none that can be used.
  virtual absl::StatusOr<std::vector<AcceleratorInfo>> Devices() = 0;
  // INVALID_ARGUMENT, FAILED_PRECONDITION (a GPU that the kernels do not run on),
  // RESOURCE_EXHAUSTED, UNAVAILABLE.
  virtual absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(
      const AcceleratorOptions& options) = 0;
  // Of backends made here.
  virtual DeviceCommunicators& communicators() = 0;
};

// What a plugin exports as `lockstep_plugin`, a function without arguments that returns it.
struct AcceleratorPlugin {
  const char* version;  // Version() of the sources that it was compiled from
  Accelerator* accelerator;
};

inline constexpr char kPluginVariable[] = "LOCKSTEP_CUDA_PLUGIN";

// The variable's value, else liblockstep_cuda.so beside this program or in ../lib. Empty: there is
// none.
std::filesystem::path PluginFile();

// Opens the plugin, for good. An empty path: PluginFile(). Unless a path was given NOT_FOUND where
// there is no driver, and FAILED_PRECONDITION where there is one but no such file; UNAVAILABLE when
// it cannot be opened (a library that it needs is not installed: named), FAILED_PRECONDITION when
// it was built for another version.
absl::StatusOr<Accelerator*> OpenAccelerator(const std::filesystem::path& path = {});

}  // namespace lockstep
