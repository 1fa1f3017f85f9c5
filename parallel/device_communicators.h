// Groups whose ranks exchange what lies on their devices.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "parallel/communicator.h"

namespace lockstep {

struct DeviceGroupOptions {
  // AllReduceSum is part of every step: worth memory of its own, which the peers' devices read.
  bool reduces_often = false;
  std::function<void(const std::string&)> notice;  // what operators may want to read; may be null
};

class DeviceCommunicators {
 public:
  virtual ~DeviceCommunicators() = default;
  // The group of `host`, over the ranks' devices: its calls take pointers of `backend` and are
  // ordered with its kernels, so that nobody waits on the host. Every rank of the group calls it,
  // and may use `host` again afterwards. UNAVAILABLE when a peer is gone or the devices cannot
  // reach each other. backend must outlive it.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Make(Backend& backend, Communicator& host,
                                                             const DeviceGroupOptions& options) = 0;
};

}  // namespace lockstep
