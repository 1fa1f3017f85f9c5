// Hosts whose numbers can be added up in one's head: one of two cores, measured with a rank on one
// core, and with two ranks, each half as fast as when it is alone; and one of two GPUs.
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

inline FormatSpeed HandMadeGpuFormat(const std::string& weights, double tflop_s) {
  return {.weights = weights,
          .linear = {{1, 1.0 / 3000}, {2048, 1.0 / 300}},
          .kv_gb_s = 2500,
          .attention_gflop_s = 400e3,
          .products_gflop_s = 1e3 * tflop_s};
}

inline HostProfile HandMadeGpuProfile() {
  HostProfile profile;
  profile.host = "elsewhere";
  profile.date = "2026-01-02";
  profile.backend = "cuda";
  profile.device = {"cuda", "NVIDIA H100 80GB HBM3", int64_t{85} * 1000 * 1000 * 1000, 2};
  profile.cores = 64;
  profile.step_us = 300;
  profile.sequence_us = 3;
  profile.request_ms = 4;
  profile.speeds = {{.tp = 1,
                     .threads = 64,
                     .layer_us = 10,
                     .launched_layer_us = 60,
                     .formats = {HandMadeGpuFormat("bf16", 600), HandMadeGpuFormat("fp8", 1200)}},
                    {.tp = 2,
                     .threads = 32,
                     .layer_us = 22,
                     .launched_layer_us = 70,
                     .all_reduce_gb_s = 100,
                     .all_reduces = {{4096, 6}, {1048576, 16}, {67108864, 400}},
                     .formats = {HandMadeGpuFormat("bf16", 500), HandMadeGpuFormat("fp8", 1000)}},
                    {.tp = 1,
                     .groups = 2,
                     .threads = 32,
                     .layer_us = 10,
                     .launched_layer_us = 60,
                     .send_us = 20,
                     .send_gb_s = 200,
                     .formats = {HandMadeGpuFormat("bf16", 600), HandMadeGpuFormat("fp8", 1200)}}};
  return profile;
}

}  // namespace lockstep::plan
