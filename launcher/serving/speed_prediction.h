// What `lockstep plan` says of a launch on this host, for those who serve: nothing where the host
// was not calibrated.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "launcher/cli/serving_flags.h"
#include "runtime/controller/served_load.h"

namespace lockstep {

struct PredictedLaunch {
  ModelFlags model;
  RankFlags rank;
  bool on_gpus = false;
  int threads_per_rank = 1;
  int num_replicas = 1;
  int64_t num_kv_blocks = 0;  // of a replica; 0: unknown yet, and taken for enough
};

// A function that any thread may call; null without a profile of this host. INVALID_ARGUMENT for a
// profile that is none, NOT_FOUND for weights whose speed it does not have: one line each, for a
// warning.
absl::StatusOr<SpeedPredictor> MakeSpeedPredictor(const PredictedLaunch& launch);

// A usual request, alone on the server, as far as max_model_len allows.
ServedLoad UsualRequest(int64_t max_model_len);

}  // namespace lockstep
