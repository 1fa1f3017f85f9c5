// The device a rank computes on, and the groups that exchange what lies there.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/accelerator.h"
#include "kernels/backend.h"
#include "kernels/base/notice.h"
#include "kernels/cpu_backend_options.h"
#include "parallel/communicator.h"
#include "parallel/gpu_places.h"
#include "parallel/renewable_communicator.h"

namespace lockstep {

struct DeviceOptions {
  std::optional<GpuPlace> gpu;  // nothing: the CPUs
  CpuBackendOptions cpu;
  double gpu_memory_utilization = 0.9;  // the part of a GPU's memory that its ranks may fill
  bool deterministic = false;           // AcceleratorOptions
};

struct GpusHere {
  Accelerator* accelerator;
  std::vector<AcceleratorInfo> gpus;  // at least one that is not refused
};
// NOT_FOUND without a driver or plugin, else UNAVAILABLE or FAILED_PRECONDITION, saying why there
// are none.
absl::StatusOr<GpusHere> FindGpus();

class RankDevice {
 public:
  // compute: AcceleratorOptions. `notice` gets what operators may want to read; may be null.
  // Errors as FindGpus and Accelerator::MakeBackend.
  static absl::StatusOr<std::unique_ptr<RankDevice>> Open(const DeviceOptions& options,
                                                          DType compute, const Notice& notice);

  Backend& backend() { return *backend_; }
  const Backend& backend() const { return *backend_; }
  // Of the GPUs of this host; nothing when its memory is the host's.
  std::optional<int> gpu() const { return gpu_; }
  // All that this process sees; none when its memory is the host's.
  const std::vector<AcceleratorInfo>& gpus() const { return gpus_; }
  // Collective over the groups. `host` is the same object in every life, and outlives this one. The
  // groups joined before are ended, and gone with all the memory they take before any is taken for
  // the new ones: there need not be room for both. sizes: DeviceGroupsOptions.
  struct MessageSizes {
    int64_t max_hidden_states = 0;
    int64_t bytes_back = 0;
  };
  absl::Status Join(RankGroups& host, const MessageSizes& sizes);
  // Between the devices, for the stage: `host` itself on CPUs. Not before the first Join; the same
  // object for good.
  RankGroups& groups() { return *groups_; }
  // Of those that are not the host's own. Any thread.
  void AbortGroups();

 private:
  RankDevice();
  absl::Status LeaveGroups(RankGroups& host);

  std::unique_ptr<Backend> backend_;
  std::optional<int> gpu_;
  std::vector<AcceleratorInfo> gpus_;
  Notice notice_;
  DeviceCommunicators* communicators_ = nullptr;
  RankGroups own_groups_;  // of GPUs
  RankGroups* groups_ = &own_groups_;
  RenewableCommunicator* tp_;  // in own_groups_
  RenewableCommunicator* pp_;
};

}  // namespace lockstep
