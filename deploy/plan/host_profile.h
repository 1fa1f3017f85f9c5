// What ranks reach on the CPUs or the GPUs of one host, as `lockstep plan --calibrate` measured it
// with the runtime's own forward pass: a JSON file per host and kind of device. Pure but for the
// functions that name a file; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/plan/measured_curve.h"
#include "nlohmann/json.hpp"

namespace lockstep::plan {

// A matrix product over a batch of so many tokens.
struct CurvePoint {
  double tokens = 1;
  double ns_per_byte = 0;  // of the rank's weights
};

// What depends on the format of the weights. Keys and values are f32 beside f32 weights, else bf16.
struct FormatSpeed {
  std::string weights;             // f32, bf16, int8, int4; of GPUs bf16, fp8
  std::vector<CurvePoint> linear;  // by tokens, ascending; never empty
  double kv_gb_s = 1;              // read by a decode
  double attention_gflop_s = 1;    // over a prompt
  // Of GPUs: large matrix products alone, without the passes over memory between them.
  double products_gflop_s = 0;
};

// Of one rank while tensor parallel groups compute at the same time, as stages of a pipeline do.
struct RankSpeed {
  int tp = 1;
  int groups = 1;
  int threads = 1;  // of each rank
  // What a layer takes beside its matrices: small kernels and, of several ranks, two all-reduces of
  // a token.
  double layer_us = 0;
  // Of GPUs: what a layer takes at least in steps too long to be recorded, whose kernels are
  // launched one by one.
  double launched_layer_us = 0;
  double all_reduce_gb_s = 0;               // of several ranks
  std::vector<SizedTime> all_reduces = {};  // of several GPUs, by size, ascending
  // Between groups; no meaning for a single one. What a stage that slept until it was its turn
  // takes longer, whatever its work; bytes to the next stage.
  double send_us = 0;
  double send_gb_s = 0;
  std::vector<FormatSpeed> formats;  // never empty
  int ranks() const { return tp * groups; }
};

// What was measured.
struct ProfiledDevice {
  std::string kind = "cpu";  // or cuda; the rest is of GPUs, which are alike
  std::string name;          // as the driver tells it: "NVIDIA H100 80GB HBM3"
  int64_t memory_bytes = 0;  // of one
  int count = 0;             // on the host
  bool is_gpu() const { return kind != "cpu"; }
};

struct HostProfile {
  std::string host;
  std::string date;     // when it was measured, like 2026-11-21
  std::string backend;  // "cpu avx2", "cuda"
  ProfiledDevice device;
  int cores = 1;
  // What serving adds to the forward pass.
  double step_us = 0;             // to every step: controller, streams, plans
  double sequence_us = 0;         // and for every sequence of it
  double request_ms = 0;          // to a first token
  std::vector<RankSpeed> speeds;  // never empty

  // "calibrated 2026-11-21 on HOST".
  std::string source() const;
  // For people: "8 x NVIDIA H100 80GB HBM3, 79.2 GiB each", "cpu avx2".
  std::string device_text() const;
  // As measured, or the nearest number of threads at work as if its total were shared out among
  // these ranks. GPUs share nothing as long as there is one for each rank.
  RankSpeed SpeedOf(int tp, int groups, int threads) const;
};

// Seconds for weight_bytes; between two points by the logarithms of both, beyond the last in
// proportion to the tokens.
double LinearSeconds(const FormatSpeed& speed, double weight_bytes, double tokens);
// Seconds that an all-reduce of so many bytes takes longer than that of a token in layer_us.
double AllReduceSecondsBeyondLayer(const RankSpeed& speed, double bytes);

// INVALID_ARGUMENT naming the field, its value and the limit.
absl::StatusOr<RankSpeed> ToRankSpeed(const nlohmann::json& json, const std::string& where);
nlohmann::ordered_json RankSpeedJson(const RankSpeed& speed);
absl::StatusOr<HostProfile> ParseHostProfile(const std::string& text);
std::string HostProfileJson(const HostProfile& profile);

// NOT_FOUND; INVALID_ARGUMENT as above, with the path in front.
absl::StatusOr<HostProfile> LoadHostProfile(const std::string& path);
// $XDG_CONFIG_HOME/lockstep/HOST.json, or below ~/.config: homes are shared between hosts, speeds
// are not. Of GPUs HOST.KIND.json. Empty without a home.
std::string DefaultProfilePath(const std::string& device_kind);

}  // namespace lockstep::plan
