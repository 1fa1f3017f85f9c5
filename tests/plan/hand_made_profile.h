// A host whose numbers can be added up in one's head: two cores, measured with a rank on one core,
// and with two ranks, each half as fast as when it is alone.
#pragma once

#include "deploy/plan/host_profile.h"

namespace lockstep::plan {

inline FormatSpeed HandMadeFormat(const std::string& weights, double slower) {
  return {.weights = weights,
          .linear = {{1, 0.1 * slower}, {100, 1.0 * slower}},
          .kv_gb_s = 2.0 / slower,
          .attention_gflop_s = 10.0 / slower};
}

inline HostProfile HandMadeProfile() {
  HostProfile profile;
  profile.host = "elsewhere";
  profile.date = "2026-01-02";
  profile.backend = "cpu avx2";
  profile.cores = 2;
  profile.step_us = 100;
  profile.sequence_us = 7;
  profile.request_ms = 3;
  profile.speeds = {{.tp = 1,
                     .threads = 1,
                     .layer_us = 10,
                     .formats = {HandMadeFormat("bf16", 1), HandMadeFormat("int8", 1)}},
                    {.tp = 2,
                     .threads = 1,
                     .layer_us = 20,
                     .all_reduce_gb_s = 4,
                     .formats = {HandMadeFormat("bf16", 2), HandMadeFormat("int8", 2)}},
                    {.tp = 1,
                     .groups = 2,
                     .threads = 1,
                     .layer_us = 20,
                     .send_us = 50,
                     .send_gb_s = 5,
                     .formats = {HandMadeFormat("bf16", 2), HandMadeFormat("int8", 2)}}};
  return profile;
}

}  // namespace lockstep::plan
