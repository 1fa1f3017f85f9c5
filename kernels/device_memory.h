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
  int64_t left_bytes = 0;  // that may still be taken; below 0 where it is too much already
};

}  // namespace lockstep
