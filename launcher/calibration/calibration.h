// The whole of `lockstep plan --calibrate`: which ranks and threads to measure, a job for each, and
// a small server for what serving adds.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/plan/host_profile.h"
#include "launcher/base/signals.h"

namespace lockstep {

struct RanksAtWork {
  int ranks = 1;
  int threads = 1;  // of each
  bool operator==(const RanksAtWork&) const = default;
};

// For layouts of 1, 2, 4 and 8 ranks (at most twice the cores), whose ranks share the cores evenly:
// all of them at work, and fewer, as when one stage of a pipeline of up to four computes. Pure.
std::vector<RanksAtWork> RanksToMeasure(int cores);

struct CalibrationOptions {
  bool quick = false;  // rougher, in a fraction of the time
  std::function<void(const std::string& line)> on_progress;
};

// Takes a core's time for tens of seconds and 2 GiB of memory. CANCELLED after an interrupt;
// NOT_FOUND without mpirun; else as its parts', in one line.
absl::StatusOr<plan::HostProfile> Calibrate(const CalibrationOptions& options,
                                            InterruptWatcher& interrupts);

}  // namespace lockstep
