// What a device's memory is used for, as the process that uses it sees it.
#pragma once

#include <cstdint>

namespace lockstep {

struct DeviceMemory {
  int64_t total_bytes = 0;   // the device's; 0: it is the host's, and nothing else is told
  int64_t budget_bytes = 0;  // of them, what a backend may fill
  int64_t held_bytes = 0;    // of buffers given out
  // Taken beside them since the backend was made: workspaces, libraries, recorded steps. Where
  // others use the device, too, nobody knows whose that is, and it is 0.
  int64_t other_bytes = 0;
  // Taken before the backend was made: by other programs, and what the driver keeps for itself. 0,
  // too, where the device is used by several ranks.
  int64_t foreign_bytes = 0;
  int64_t left_bytes = 0;  // that may still be taken; below 0 where it is too much already

  // What is taken by others, and not the budget, sets what is left.
  bool is_limited_by_others() const {
    return foreign_bytes > 0 && left_bytes < budget_bytes - held_bytes - other_bytes;
  }
};

}  // namespace lockstep
