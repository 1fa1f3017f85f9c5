// The whole of `lockstep plan --calibrate`: a job for each number of ranks to measure, and a small
// server for what serving adds.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "deploy/plan/host_profile.h"
#include "deploy/plan/weight_bytes.h"
#include "launcher/base/signals.h"

namespace lockstep {

struct CalibrationOptions {
  bool quick = false;                  // rougher, in a fraction of the time
  std::optional<plan::Layout> layout;  // no other
  std::string weights;                 // only this format; empty: all that the device holds
  std::string device = "auto";         // RankFlags::device
  std::string sizes;                   // of FindProbeSizes; empty: the device's
  absl::Duration most_time = absl::Minutes(15);  // of a job; usual are tens of seconds
  std::function<void(const std::string& line)> on_progress;
};

// Takes tens of seconds to minutes and 2 GiB of memory. CANCELLED after an interrupt;
// DEADLINE_EXCEEDED when ranks hang; NOT_FOUND
// without mpirun or the GPUs asked for; INVALID_ARGUMENT for a format that the device does not hold
// and a layout of more ranks than there are GPUs; else as its parts', in one line.
absl::StatusOr<plan::HostProfile> Calibrate(const CalibrationOptions& options,
                                            InterruptWatcher& interrupts);

}  // namespace lockstep
