#include "tests/support/cuda_emulation/runtime/launch.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/support/cuda_emulation/compiled/kernels.h"
#include "tests/support/cuda_emulation/runtime/block_runner.h"
#include "tests/support/cuda_emulation/runtime/device_memory.h"
#include "tests/support/cuda_emulation/runtime/engine.h"
#include "tests/support/cuda_emulation/runtime/limits.h"

namespace lockstep::cuda_emulation {

namespace {

// Dynamic shared memory that a kernel may have beyond what all may.
std::map<const void*, size_t>& SharedBytesAllowed() {
  static auto* allowed = new std::map<const void*, size_t>;
  return *allowed;
}

bool Within(const dim3& shape, const int (&most)[3]) {
  return shape.x >= 1 && shape.y >= 1 && shape.z >= 1 && shape.x <= unsigned(most[0]) &&
         shape.y <= unsigned(most[1]) && shape.z <= unsigned(most[2]);
}

bool Overlaps(const cudaLaunchConfig_t& config) {
  return std::any_of(config.attrs, config.attrs + config.numAttrs, [](const auto& attribute) {
    return attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization &&
           attribute.val.programmaticStreamSerializationAllowed != 0;
  });
}

// Kernels are taken for compiled as kernels/cuda/CMakeLists.txt has them: for 8.0, which 8.x run,
// for 9.0, and as PTX of 8.0.
cudaError_t FindImage() {
  const Device& device = TheEngine().device;
  if (device.compute_major < 8) return cudaErrorNoKernelImageForDevice;
  const bool is_compiled =
      device.compute_major == 8 || (device.compute_major == 9 && device.compute_minor == 0);
  return is_compiled || device.driver_compiles_ptx ? cudaSuccess : cudaErrorUnsupportedPtxVersion;
}

cudaError_t CheckLaunch(const cudaLaunchConfig_t& config, const void* kernel) {
  const uint64_t threads = uint64_t{config.blockDim.x} * config.blockDim.y * config.blockDim.z;
  if (!Within(config.gridDim, kMostBlocksDim) || !Within(config.blockDim, kMostThreadsDim) ||
      threads > kMostThreads) {
    return cudaErrorInvalidConfiguration;
  }
  const auto allowed = SharedBytesAllowed().find(kernel);
  const size_t most =
      allowed == SharedBytesAllowed().end() ? kSharedBytesWithoutAsking : allowed->second;
  if (config.dynamicSmemBytes > most) return cudaErrorInvalidValue;
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttributeID id = config.attrs[i].id;
    if (id == cudaLaunchAttributeCooperative || id == cudaLaunchAttributeClusterDimension) {
      return cudaErrorNotSupported;
    }
  }
  if (const cudaError_t error = FindImage(); error != cudaSuccess) return error;
  // What a device before Hopper runs was compiled without the instruction that waits.
  const bool may_overlap = TheEngine().device.compute_major >= 9;
  return Overlaps(config) && !may_overlap ? cudaErrorNotSupported : cudaSuccess;
}

// A kernel that follows a pointer to pageable host memory works here and on no GPU.
std::string CheckPointers(std::initializer_list<Argument> arguments) {
  int index = 0;
  for (const auto& [bytes, pointer] : arguments) {
    // The end of a range is no harm.
    if (pointer != nullptr && TheDeviceMemory().Find(pointer) == nullptr &&
        TheDeviceMemory().Find(static_cast<const char*>(pointer) - 1) == nullptr) {
      return absl::StrFormat("kernel argument %d points to %p, which is not the device's memory",
                             index, pointer);
    }
    ++index;
  }
  return "";
}

// What nvcc has made of the kernel is to run, if the environment says so.
std::string TakeCompiled(const void* kernel, std::initializer_list<Argument> arguments,
                         Kernel& launched) {
  ptx::CompiledKernels* const compiled = ptx::TheCompiledKernels();
  if (compiled == nullptr) return "";
  std::vector<std::span<const char>> bytes;
  for (const Argument& argument : arguments) bytes.push_back(argument.bytes);
  absl::StatusOr<ptx::Launch> launch = compiled->Prepare(kernel, bytes, launched.shared_bytes);
  if (!launch.ok()) return std::string(launch.status().message());
  launched.shared_bytes = ptx::SharedBytesOf(*launch);
  if (ptx::LaunchesAreCounted()) {
    const dim3& grid = launched.grid;
    const dim3& block = launched.block;
    launch->counter =
        std::make_shared<ptx::LaunchCounter>(*launch->program, int64_t{grid.x} * grid.y * grid.z,
                                             static_cast<int>(block.x * block.y * block.z));
  }
  launched.thread = [launch = *std::move(launch)] { ptx::RunThread(launch); };
  return "";
}

// A launch's work: gone on with until no block waits for another device any more.
Work RunOf(const Kernel& kernel) {
  const auto run = std::make_shared<BlockRunner::Run>(kernel);
  Work work = [run] {
    if (!run->has_begun) ++TheEngine().num_kernels_run;
    const int num_resident = TheEngine().device.num_multiprocessors * kMostResidentThreads;
    const bool done = TheBlockRunner().Advance(*run, num_resident);
    if (!run->failure.empty()) {
      TheEngine().Fail(run->failure);
    } else if (std::exchange(run->has_told, false)) {
      TheEngine().NotifyChange();
    }
    return done;
  };
  work.kind = Work::Kind::kKernel;
  if (!kernel.overlaps) return work;
  work.begin = [run] {
    if (TheBlockRunner().BeginEarly(*run)) ++TheEngine().num_kernels_begun_early;
  };
  return work;
}

}  // namespace

cudaError_t LaunchKernel(const cudaLaunchConfig_t& config, const void* kernel,
                         std::initializer_list<Argument> arguments, std::function<void()> thread) {
  return Call([&](auto&) {
    std::shared_ptr<CUstream_st> stream;
    cudaError_t error = TheEngine().Find(config.stream, &stream);
    if (error == cudaSuccess) error = CheckLaunch(config, kernel);
    if (error != cudaSuccess) return error;
    if (stream->capture != nullptr && Overlaps(config) && !TheEngine().device.records_overlaps) {
      stream->capture->invalid = true;
      return cudaErrorStreamCaptureUnsupported;
    }
    Kernel launched{config.gridDim, config.blockDim, config.dynamicSmemBytes, Overlaps(config),
                    std::move(thread)};
    std::string bad = CheckPointers(arguments);
    if (bad.empty()) bad = TakeCompiled(kernel, arguments, launched);
    if (!bad.empty()) {
      TheEngine().Fail(bad);
      return cudaErrorLaunchFailure;
    }
    return TheEngine().Issue(*stream, "a kernel", [launched] { return RunOf(launched); });
  });
}

cudaError_t AttributesOfKernels(cudaFuncAttributes* attributes) {
  return Call([&](auto&) {
    const int compiled_for = TheEngine().device.compute_major >= 9 ? 90 : 80;
    *attributes = {.numRegs = 168, .ptxVersion = compiled_for, .binaryVersion = compiled_for};
    return FindImage();
  });
}

cudaError_t SetKernelAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  return Call([&](auto&) {
    if (kernel == nullptr) return cudaErrorInvalidValue;
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) {  // a hint
      return value >= cudaSharedmemCarveoutDefault && value <= cudaSharedmemCarveoutMaxShared
                 ? cudaSuccess
                 : cudaErrorInvalidValue;
    }
    const Device& device = TheEngine().device;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        static_cast<size_t>(value) > MostSharedBytes(device.compute_major, device.compute_minor)) {
      return cudaErrorInvalidValue;
    }
    SharedBytesAllowed()[kernel] = static_cast<size_t>(value);
    return cudaSuccess;
  });
}

}  // namespace lockstep::cuda_emulation
