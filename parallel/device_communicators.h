// Groups whose ranks exchange what lies on their devices.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/base/notice.h"
#include "parallel/communicator.h"
#include "parallel/token_split.h"

namespace lockstep {

struct DeviceGroupOptions {
  // Of sums over the group, which are part of every step: worth memory of their own, which the
  // peers' devices read. Longer ones may wait for connections the first time. 0: there are none.
  int64_t most_summed_bytes = 0;
  bool exchanges_parts = false;  // AllToAll is called: connections between any two ranks
  // Of a pipeline: messages come from rank() - 1 and go to rank() + 1, of so many bytes at most
  // (longer ones take turns in pieces). Memory for one of either is taken, so that they travel
  // beside the kernels: Send and Recv may then not be part of Backend::Repeat, and what is sent may
  // be overwritten by the kernels that follow. Both ends of a link say the same; 0 where there is
  // no such rank.
  bool is_pipeline = false;
  int64_t bytes_from_previous = 0;
  int64_t bytes_to_next = 0;
  // Of messages that the last rank of a pipeline sends back to rank 0, which may receive them in
  // parts (then no longer ones). 0: there are none.
  int64_t bytes_back = 0;
  Notice notice;  // what operators may want to read; may be null
};

class DeviceCommunicators {
 public:
  virtual ~DeviceCommunicators() = default;
  // The group of `host`, over the ranks' devices: its calls take pointers of `backend` and are
  // ordered with its kernels, so that nobody waits on the host. Every rank of the group calls it,
  // and may use `host` again afterwards. UNAVAILABLE when a peer is gone or the devices cannot
  // reach each other, RESOURCE_EXHAUSTED without the memory. backend must outlive it.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Make(Backend& backend, Communicator& host,
                                                             const DeviceGroupOptions& options) = 0;
};

struct DeviceGroupsOptions {
  int64_t max_hidden_states = 0;  // of a step, the most numbers that a stage hands to the next
  int64_t bytes_back = 0;         // DeviceGroupOptions
  int64_t most_undivided_bytes = kMostUndividedBytesBetweenDevices;  // RankGroups
  Notice notice;
};

// Both groups of a rank; `host`'s say where the stages lie. Collective; errors as above.
absl::StatusOr<RankGroups> MakeDeviceGroups(DeviceCommunicators& communicators, Backend& backend,
                                            RankGroups& host, const DeviceGroupsOptions& options);

}  // namespace lockstep
