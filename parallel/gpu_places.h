// Which GPU each rank of a host computes on, and with how many others. Pure.
//
// A rank may see all GPUs of its host, or those alone that a launcher has bound it to: the same GPU
// is known by its UUID, not by its number.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep {

// Of a rank among those of its host, counted from 0, over all jobs that a launcher starts there
// (replicas).
struct HostPlace {
  int place = 0;
  int num_ranks = 1;
};

struct SeenGpu {
  std::string uuid;
  std::string bus_id;  // "0000:1b:00.0", as shown to operators
};

// What a rank tells the others of its job.
struct RankGpus {
  int node = 0;      // ranks with the same number are on one host
  std::string host;  // as shown to operators
  HostPlace place;
  std::vector<SeenGpu> gpus;  // none: it computes on CPUs
  std::string why_none = {};  // for operators; empty where nobody has looked for GPUs
};

struct GpuPlace {
  int gpu = 0;                   // of those that the rank sees
  int num_sharing = 1;           // ranks on that GPU, of all jobs of its host
  bool job_shares_gpus = false;  // two ranks of the job, any two, have one GPU
};

// ranks: of the job, by rank. GPUs are dealt out by places, by turns when there are more ranks;
// nothing for CPUs. FAILED_PRECONDITION when some ranks have GPUs and others none.
absl::StatusOr<std::optional<GpuPlace>> PlaceOnGpu(std::span<const RankGpus> ranks, int rank);

// Whether all ranks that have GPUs have one of their own, or may share them: a GPU that is gone
// must not halve the memory of two ranks in silence. FAILED_PRECONDITION naming the ranks, their
// host and the GPUs that they see, alike on every rank. On several hosts the ranks of a job may
// never share one: NCCL refuses them unless they pretend to have hosts of their own, and then
// it has but the loopback of one host to connect them (parallel/nccl_environment.h).
absl::Status CheckSharing(std::span<const RankGpus> ranks, bool may_share);

}  // namespace lockstep
