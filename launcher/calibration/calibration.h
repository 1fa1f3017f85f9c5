// The whole of `lockstep plan --calibrate`: which ranks and threads to measure, a job for each, and
// a small server for what serving adds.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/plan/host_profile.h"
#include "deploy/plan/weight_bytes.h"
#include "launcher/base/signals.h"

namespace lockstep {

// Tensor parallel groups that compute at the same time, as stages of a pipeline do.
struct RanksAtWork {
  int tp = 1;
  int groups = 1;
  int threads = 1;  // of each rank
  bool operator==(const RanksAtWork&) const = default;
};

// For layouts of 1, 2, 4 and 8 ranks (at most twice the cores), whose ranks share the cores evenly:
// all stages of a pipeline of up to four at work, and fewer. Pure.
std::vector<RanksAtWork> RanksToMeasure(int cores);
// For this layout alone.
std::vector<RanksAtWork> RanksToMeasure(int cores, const plan::Layout& layout);

struct CalibrationOptions {
  bool quick = false;                  // rougher, in a fraction of the time
  std::optional<plan::Layout> layout;  // no other
  std::string weights;                 // f32, bf16, int8 or int4, no other; empty: all
  std::function<void(const std::string& line)> on_progress;
};

// Takes a core's time for tens of seconds and 2 GiB of memory. CANCELLED after an interrupt;
// NOT_FOUND without mpirun; else as its parts', in one line.
absl::StatusOr<plan::HostProfile> Calibrate(const CalibrationOptions& options,
                                            InterruptWatcher& interrupts);

}  // namespace lockstep
