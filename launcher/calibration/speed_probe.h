// What one rank reaches while its peers do the same: the runtime's own forward pass, timed on small
// synthetic models. Collective over the MPI job; MPI's thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "deploy/plan/host_profile.h"
#include "launcher/calibration/probe_models.h"
#include "parallel/mpi_communicator.h"
#include "runtime/worker/rank_device.h"

namespace lockstep {

struct SpeedProbeOptions {
  ProbeModels models;
  ProbeSizes sizes;
  std::string weights;  // the only format; empty: all that the device holds
  int tp = 1;           // ranks of a group; the job is a whole number of groups
  DeviceOptions device;
  double seconds = 1.5;  // for each format, roughly; at least three passes
};

// Each group computes for itself, all of them at the same time; only rank 0's answer counts. Errors
// as RankDevice's, LlamaStage's and Communicator's; INVALID_ARGUMENT for a job that is no number of
// groups.
absl::StatusOr<plan::RankSpeed> MeasureRankSpeed(const MpiSession& session,
                                                 const SpeedProbeOptions& options);

}  // namespace lockstep
