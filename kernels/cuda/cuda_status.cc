#include "kernels/cuda/cuda_status.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include "absl/strings/ascii.h"

namespace lockstep::cuda {
namespace {

// The one place that checks without an object at hand can look at.
class KnownGpus {
 public:
  void Add(int device, const std::string& bus_id) {
    const std::lock_guard lock(mutex_);
    bus_ids_[device] = bus_id;
  }
  std::string Name(int device) {
    const std::lock_guard lock(mutex_);
    const auto known = bus_ids_.find(device);
    return absl::StrCat("GPU ", device,
                        known == bus_ids_.end() ? "" : absl::StrCat(" (", known->second, ")"));
  }

 private:
  std::mutex mutex_;
  std::map<int, std::string> bus_ids_;
};

KnownGpus& TheKnownGpus() {
  static auto* known = new KnownGpus;  // outlives every thread
  return *known;
}

}  // namespace

void TakeNoteOfGpu(int device) {
  char bus_id[32] = {};
  if (cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), device) != cudaSuccess) return;
  TheKnownGpus().Add(device, absl::AsciiStrToLower(bus_id));
}

void FailOnGpu(cudaError_t error, const char* what) {
  int device = 0;  // of this thread; a failed device may keep it to itself
  const bool is_known = cudaGetDevice(&device) == cudaSuccess;
  LS_CHECK(error == cudaSuccess) << what << ": " << cudaGetErrorString(error) << " on "
                                 << (is_known ? TheKnownGpus().Name(device) : "this rank's GPU");
  std::abort();
}

}  // namespace lockstep::cuda
