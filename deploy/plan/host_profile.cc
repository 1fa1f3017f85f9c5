#include "deploy/plan/host_profile.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "deploy/plan/json_fields.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "model/checkpoint/strict_json.h"

namespace lockstep::plan {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr char kKind[] = "lockstep host profile";
constexpr int kVersion = 2;
constexpr double kMaxRate = 1e6;  // GB/s or GFLOP/s
constexpr double kMinRate = 1e-6;
constexpr int kMaxRanks = 65536;

absl::StatusOr<std::vector<CurvePoint>> ToCurve(const JsonObject& format) {
  ASSIGN_OR_RETURN(const json* points, format.Array("linear"));
  std::vector<CurvePoint> curve;
  for (const json& entry : *points) {
    const JsonObject point{entry, absl::StrCat(format.where, "linear[", curve.size(), "].")};
    ASSIGN_OR_RETURN(const double tokens, point.Number("tokens", 1, 1e6));
    ASSIGN_OR_RETURN(const double ns_per_byte, point.Number("ns_per_byte", 1e-9, 1e9));
    if (!curve.empty() && tokens <= curve.back().tokens) {
      return absl::InvalidArgumentError(absl::StrCat(point.where, "tokens is ", tokens,
                                                     "; it must be above the ", curve.back().tokens,
                                                     " before it"));
    }
    curve.push_back({tokens, ns_per_byte});
  }
  if (curve.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(format.where, "linear is empty"));
  }
  return curve;
}

absl::StatusOr<FormatSpeed> ToFormatSpeed(const JsonObject& object) {
  FormatSpeed speed;
  ASSIGN_OR_RETURN(speed.weights, object.Text("weights"));
  ASSIGN_OR_RETURN(speed.linear, ToCurve(object));
  ASSIGN_OR_RETURN(speed.kv_gb_s, object.Number("kv_gb_s", kMinRate, kMaxRate));
  ASSIGN_OR_RETURN(speed.attention_gflop_s, object.Number("attention_gflop_s", kMinRate, kMaxRate));
  return speed;
}

ordered_json FormatSpeedJson(const FormatSpeed& speed) {
  ordered_json out = {{"weights", speed.weights}, {"linear", ordered_json::array()}};
  for (const CurvePoint& point : speed.linear) {
    out["linear"].push_back({{"tokens", point.tokens}, {"ns_per_byte", point.ns_per_byte}});
  }
  out["kv_gb_s"] = speed.kv_gb_s;
  out["attention_gflop_s"] = speed.attention_gflop_s;
  return out;
}

// So many times slower.
void SlowDown(double factor, RankSpeed& speed) {
  speed.layer_us *= factor;
  speed.all_reduce_gb_s /= factor;
  speed.send_us *= factor;
  speed.send_gb_s /= factor;
  for (FormatSpeed& format : speed.formats) {
    for (CurvePoint& point : format.linear) point.ns_per_byte *= factor;
    format.kv_gb_s /= factor;
    format.attention_gflop_s /= factor;
  }
}

}  // namespace

std::string HostProfile::source() const { return absl::StrCat("calibrated ", date, " on ", host); }

RankSpeed HostProfile::SpeedOf(int tp, int groups, int threads) const {
  LS_CHECK(!speeds.empty());
  const double ranks = static_cast<double>(tp) * groups;
  const auto distance = [&](const RankSpeed& speed) {
    const double at_work = static_cast<double>(speed.ranks()) * speed.threads;
    return std::make_tuple((speed.tp > 1) != (tp > 1),  // alone there are no links
                           (speed.groups > 1) != (groups > 1),
                           std::abs(std::log(at_work / ranks / threads)),
                           std::abs(std::log(static_cast<double>(speed.tp) / tp)));
  };
  RankSpeed nearest = *std::min_element(
      speeds.begin(), speeds.end(),
      [&](const RankSpeed& a, const RankSpeed& b) { return distance(a) < distance(b); });
  SlowDown(ranks / nearest.ranks(), nearest);
  nearest.tp = tp;
  nearest.groups = groups;
  nearest.threads = threads;
  return nearest;
}

double LinearSeconds(const FormatSpeed& speed, double weight_bytes, double tokens) {
  constexpr double kNano = 1e-9;
  const std::vector<CurvePoint>& curve = speed.linear;
  LS_CHECK(!curve.empty());
  if (tokens <= curve.front().tokens) return weight_bytes * curve.front().ns_per_byte * kNano;
  if (tokens >= curve.back().tokens) {
    return weight_bytes * curve.back().ns_per_byte * kNano * tokens / curve.back().tokens;
  }
  const auto upper = std::upper_bound(
      curve.begin(), curve.end(), tokens,
      [](double wanted, const CurvePoint& point) { return wanted < point.tokens; });
  const CurvePoint& a = *(upper - 1);
  const CurvePoint& b = *upper;
  const double share = std::log(tokens / a.tokens) / std::log(b.tokens / a.tokens);
  const double ns = a.ns_per_byte * std::pow(b.ns_per_byte / a.ns_per_byte, share);
  return weight_bytes * ns * kNano;
}

absl::StatusOr<RankSpeed> ToRankSpeed(const json& value, const std::string& where) {
  const JsonObject object{value, where};
  RankSpeed speed;
  ASSIGN_OR_RETURN(speed.tp, object.Integer("tp", 1, kMaxRanks));
  ASSIGN_OR_RETURN(speed.groups, object.Integer("groups", 1, kMaxRanks));
  ASSIGN_OR_RETURN(speed.threads, object.Integer("threads", 1, kMaxRanks));
  ASSIGN_OR_RETURN(speed.layer_us, object.Number("layer_us", 0, 1e9));
  if (speed.tp > 1) {
    ASSIGN_OR_RETURN(speed.all_reduce_gb_s, object.Number("all_reduce_gb_s", kMinRate, kMaxRate));
  }
  if (speed.groups > 1) {
    ASSIGN_OR_RETURN(speed.send_us, object.Number("send_us", 0, 1e9));
    ASSIGN_OR_RETURN(speed.send_gb_s, object.Number("send_gb_s", kMinRate, kMaxRate));
  }
  ASSIGN_OR_RETURN(const json* formats, object.Array("formats"));
  for (const json& entry : *formats) {
    ASSIGN_OR_RETURN(
        FormatSpeed format,
        ToFormatSpeed({entry, absl::StrCat(where, "formats[", speed.formats.size(), "].")}));
    speed.formats.push_back(std::move(format));
  }
  if (speed.formats.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(where, "formats is empty"));
  }
  return speed;
}

ordered_json RankSpeedJson(const RankSpeed& speed) {
  ordered_json out = {{"tp", speed.tp},
                      {"groups", speed.groups},
                      {"threads", speed.threads},
                      {"layer_us", speed.layer_us}};
  if (speed.tp > 1) out["all_reduce_gb_s"] = speed.all_reduce_gb_s;
  if (speed.groups > 1) {
    out["send_us"] = speed.send_us;
    out["send_gb_s"] = speed.send_gb_s;
  }
  out["formats"] = ordered_json::array();
  for (const FormatSpeed& format : speed.formats) out["formats"].push_back(FormatSpeedJson(format));
  return out;
}

absl::StatusOr<HostProfile> ParseHostProfile(const std::string& text) {
  ASSIGN_OR_RETURN(const json value, ParseStrictJson(text));
  const JsonObject object{value, ""};
  HostProfile profile;
  const auto kind = object.Text("kind");
  if (!kind.ok() || *kind != kKind) {
    return absl::InvalidArgumentError(
        "is not a host profile: make one with `lockstep plan --calibrate`");
  }
  RETURN_IF_ERROR(object.Integer("version", kVersion, kVersion).status());
  ASSIGN_OR_RETURN(profile.host, object.Text("host"));
  ASSIGN_OR_RETURN(profile.date, object.Text("date"));
  ASSIGN_OR_RETURN(profile.backend, object.Text("backend"));
  ASSIGN_OR_RETURN(profile.cores, object.Integer("cores", 1, kMaxRanks));
  ASSIGN_OR_RETURN(profile.step_us, object.Number("step_us", 0, 1e9));
  ASSIGN_OR_RETURN(profile.sequence_us, object.Number("sequence_us", 0, 1e9));
  ASSIGN_OR_RETURN(profile.request_ms, object.Number("request_ms", 0, 1e9));
  ASSIGN_OR_RETURN(const json* speeds, object.Array("speeds"));
  for (const json& entry : *speeds) {
    ASSIGN_OR_RETURN(RankSpeed speed,
                     ToRankSpeed(entry, absl::StrCat("speeds[", profile.speeds.size(), "].")));
    profile.speeds.push_back(std::move(speed));
  }
  if (profile.speeds.empty()) return absl::InvalidArgumentError("speeds is empty");
  return profile;
}

std::string HostProfileJson(const HostProfile& profile) {
  ordered_json out = {{"kind", kKind},
                      {"version", kVersion},
                      {"host", profile.host},
                      {"date", profile.date},
                      {"backend", profile.backend},
                      {"cores", profile.cores},
                      {"step_us", profile.step_us},
                      {"sequence_us", profile.sequence_us},
                      {"request_ms", profile.request_ms},
                      {"speeds", ordered_json::array()}};
  for (const RankSpeed& speed : profile.speeds) out["speeds"].push_back(RankSpeedJson(speed));
  return out.dump(1) + "\n";
}

absl::StatusOr<HostProfile> LoadHostProfile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  auto profile = ParseHostProfile(text);
  if (!profile.ok()) return InFile(path, profile.status());
  return profile;
}

std::string DefaultProfilePath() {
  char host[256] = {};
  if (::gethostname(host, sizeof(host) - 1) != 0) return "";
  std::string directory;
  if (const char* config = std::getenv("XDG_CONFIG_HOME"); config != nullptr && *config == '/') {
    directory = config;
  } else if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    directory = absl::StrCat(home, "/.config");
  } else {
    return "";
  }
  return absl::StrCat(directory, "/lockstep/", host, ".json");
}

}  // namespace lockstep::plan
