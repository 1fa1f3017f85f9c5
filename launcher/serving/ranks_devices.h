// What the ranks of a launch compute on, as far as is known before one of them is started.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launcher/cli/serving_flags.h"

namespace lockstep {

struct AcceleratorInfo;
struct LaunchPlan;

struct RanksDevices {
  enum class Kind {
    kCpus,
    kGpus,
    kEither,  // ranks on hosts elsewhere look for themselves
  };
  Kind kind = Kind::kCpus;
  bool multiply_fp8 = false;     // or may do so
  std::string name = {};         // of a GPU
  int64_t memory_bytes = 0;      // of all of them, what ranks may take
  std::string why_no_gpus = {};  // "; no GPU is used: ..." where they were looked for

  bool may_be_gpus() const { return kind != Kind::kCpus; }
};

// Takes all hosts for equal to this one. Of hosts elsewhere only the flag tells. With auto they may
// have GPUs: what only those can do is for their ranks to refuse, and so is how much cache fits.
// Errors as GpusFor and CheckGpusOfThisHost.
absl::StatusOr<RanksDevices> DevicesOf(const RankFlags& rank, const LaunchPlan& launch);

// INVALID_ARGUMENT if the devices cannot compute what the flags ask for, FAILED_PRECONDITION where
// GPUs that may yet come could: a driver may be loaded later than what starts with the system.
absl::Status CheckFormats(const ModelFlags& model, const RankFlags& rank,
                          const RanksDevices& devices);

// What ranks may take of their GPUs in all, where each host has GPUs like these: of those that have
// a rank.
int64_t MemoryOfGpus(const std::vector<AcceleratorInfo>& gpus, int ranks_per_host, int num_hosts,
                     double gpu_memory_utilization);

// Of so many ranks, all there are, before any of them is started: FAILED_PRECONDITION if a GPU that
// has one is known not to do, and as CheckSharing.
absl::Status CheckGpusOfThisHost(const std::vector<AcceleratorInfo>& gpus, int num_ranks,
                                 bool may_share);

}  // namespace lockstep
