// Groups whose ranks exchange what lies on their devices.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "parallel/communicator.h"

namespace lockstep {

class DeviceCommunicators {
 public:
  virtual ~DeviceCommunicators() = default;
  // The group of `host`, over the ranks' devices: its calls take pointers of `backend` and are
  // ordered with its kernels, so that nobody waits on the host. Every rank of the group calls it,
  // and may use `host` again afterwards. UNAVAILABLE when a peer is gone or the devices cannot
  // reach each other. backend must outlive it.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Make(Backend& backend,
                                                             Communicator& host) = 0;
};

}  // namespace lockstep
