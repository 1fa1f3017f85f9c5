// What ranks reach on the CPUs of one host, as `lockstep plan --calibrate` measured it with the
// runtime's own forward pass: a JSON file per host. Pure but for the functions that name a file;
// any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace lockstep::plan {

// A matrix product over a batch of so many tokens.
struct CurvePoint {
  double tokens = 1;
  double ns_per_byte = 0;  // of the rank's weights
};

// What depends on the format of the weights. Keys and values are f32 beside f32 weights, else bf16.
struct FormatSpeed {
  std::string weights;             // f32, bf16, int8, int4
  std::vector<CurvePoint> linear;  // by tokens, ascending; never empty
  double kv_gb_s = 1;              // read by a decode
  double attention_gflop_s = 1;    // over a prompt
};

// Of one rank while tensor parallel groups compute at the same time, as stages of a pipeline do.
struct RankSpeed {
  int tp = 1;
  int groups = 1;
  int threads = 1;  // of each rank
  // What a layer takes beside its matrices: small kernels and, of several ranks, two all-reduces of
  // a token.
  double layer_us = 0;
  double all_reduce_gb_s = 0;  // of several ranks
  // Between groups; no meaning for a single one. What a stage that slept until it was its turn
  // takes longer, whatever its work; bytes to the next stage.
  double send_us = 0;
  double send_gb_s = 0;
  std::vector<FormatSpeed> formats;  // never empty
  int ranks() const { return tp * groups; }
};

struct HostProfile {
  std::string host;
  std::string date;     // when it was measured, like 2026-11-21
  std::string backend;  // "cpu avx2"
  int cores = 1;
  // What serving adds to the forward pass.
  double step_us = 0;             // to every step: controller, streams, plans
  double sequence_us = 0;         // and for every sequence of it
  double request_ms = 0;          // to a first token
  std::vector<RankSpeed> speeds;  // never empty

  // "calibrated 2026-11-21 on HOST".
  std::string source() const;
  // As measured, or the nearest number of threads at work as if its total were shared out among
  // these ranks.
  RankSpeed SpeedOf(int tp, int groups, int threads) const;
};

// Seconds for weight_bytes; between two points by the logarithms of both, beyond the last in
// proportion to the tokens.
double LinearSeconds(const FormatSpeed& speed, double weight_bytes, double tokens);

// INVALID_ARGUMENT naming the field, its value and the limit.
absl::StatusOr<RankSpeed> ToRankSpeed(const nlohmann::json& json, const std::string& where);
nlohmann::ordered_json RankSpeedJson(const RankSpeed& speed);
absl::StatusOr<HostProfile> ParseHostProfile(const std::string& text);
std::string HostProfileJson(const HostProfile& profile);

// NOT_FOUND; INVALID_ARGUMENT as above, with the path in front.
absl::StatusOr<HostProfile> LoadHostProfile(const std::string& path);
// $XDG_CONFIG_HOME/lockstep/HOST.json, or below ~/.config: homes are shared between hosts, speeds
// are not. Empty without a home.
std::string DefaultProfilePath();

}  // namespace lockstep::plan
