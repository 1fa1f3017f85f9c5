#include "deploy/plan/host_profile.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "deploy/plan/json_fields.h"
#include "deploy/plan/units.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/text_file.h"
#include "model/json/strict_json.h"

namespace lockstep::plan {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr char kKind[] = "lockstep host profile";
constexpr int kVersion = 3;
constexpr double kMaxRate = 1e9;  // GB/s or GFLOP/s
constexpr double kMinRate = 1e-6;
constexpr int kMaxRanks = 65536;

// A curve's coordinates: their names in the file and in Point, and their limits.
template <typename Point>
struct Axis {
  const char* name;
  double Point::*number;
  double least;
  double most;
};
constexpr Axis<CurvePoint> kTokens = {"tokens", &CurvePoint::tokens, 1, 1e6};
constexpr Axis<CurvePoint> kNsPerByte = {"ns_per_byte", &CurvePoint::ns_per_byte, 1e-9, 1e9};
constexpr Axis<SizedTime> kBytes = {"bytes", &SizedTime::bytes, 1, 1e12};
constexpr Axis<SizedTime> kMicroseconds = {"us", &SizedTime::us, 1e-6, 1e9};

template <typename Point>
absl::StatusOr<std::vector<Point>> ToCurve(const JsonObject& object, const char* field,
                                           const Axis<Point>& x, const Axis<Point>& y) {
  ASSIGN_OR_RETURN(const json* points, object.Array(field));
  std::vector<Point> curve;
  for (const json& entry : *points) {
    const JsonObject fields{entry, absl::StrCat(object.where, field, "[", curve.size(), "].")};
    Point point;
    ASSIGN_OR_RETURN(point.*x.number, fields.Number(x.name, x.least, x.most));
    ASSIGN_OR_RETURN(point.*y.number, fields.Number(y.name, y.least, y.most));
    if (!curve.empty() && point.*x.number <= curve.back().*x.number) {
      return absl::InvalidArgumentError(absl::StrCat(fields.where, x.name, " is ", point.*x.number,
                                                     "; it must be above the ",
                                                     curve.back().*x.number, " before it"));
    }
    curve.push_back(point);
  }
  if (curve.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(object.where, field, " is empty"));
  }
  return curve;
}

template <typename Point>
ordered_json CurveJson(const std::vector<Point>& curve, const Axis<Point>& x,
                       const Axis<Point>& y) {
  ordered_json out = ordered_json::array();
  for (const Point& point : curve) {
    out.push_back({{x.name, point.*x.number}, {y.name, point.*y.number}});
  }
  return out;
}

bool Has(const JsonObject& object, const char* field) {
  return object.value.is_object() && object.value.contains(field);
}

absl::StatusOr<FormatSpeed> ToFormatSpeed(const JsonObject& object) {
  FormatSpeed speed;
  ASSIGN_OR_RETURN(speed.weights, object.Text("weights"));
  ASSIGN_OR_RETURN(speed.linear, ToCurve(object, "linear", kTokens, kNsPerByte));
  ASSIGN_OR_RETURN(speed.kv_gb_s, object.Number("kv_gb_s", kMinRate, kMaxRate));
  ASSIGN_OR_RETURN(speed.attention_gflop_s, object.Number("attention_gflop_s", kMinRate, kMaxRate));
  if (Has(object, "products_gflop_s")) {
    ASSIGN_OR_RETURN(speed.products_gflop_s, object.Number("products_gflop_s", kMinRate, kMaxRate));
  }
  return speed;
}

ordered_json FormatSpeedJson(const FormatSpeed& speed) {
  ordered_json out = {{"weights", speed.weights},
                      {"linear", CurveJson(speed.linear, kTokens, kNsPerByte)},
                      {"kv_gb_s", speed.kv_gb_s},
                      {"attention_gflop_s", speed.attention_gflop_s}};
  if (speed.products_gflop_s > 0) out["products_gflop_s"] = speed.products_gflop_s;
  return out;
}

absl::StatusOr<ProfiledDevice> ToDevice(const JsonObject& profile) {
  if (!Has(profile, "device")) return absl::InvalidArgumentError("device is missing");
  const JsonObject object{profile.value.at("device"), "device."};
  ProfiledDevice device;
  ASSIGN_OR_RETURN(device.kind, object.Text("kind"));
  if (device.kind != "cpu" && device.kind != "cuda") {
    return absl::InvalidArgumentError(
        absl::StrCat("device.kind is ", Quoted(device.kind), "; it must be cpu or cuda"));
  }
  if (!device.is_gpu()) return device;
  ASSIGN_OR_RETURN(device.name, object.Text("name"));
  ASSIGN_OR_RETURN(const double memory_bytes, object.Number("memory_bytes", 1, 1e15));
  device.memory_bytes = static_cast<int64_t>(memory_bytes);
  ASSIGN_OR_RETURN(device.count, object.Integer("count", 1, kMaxRanks));
  return device;
}

ordered_json DeviceJson(const ProfiledDevice& device) {
  if (!device.is_gpu()) return {{"kind", device.kind}};
  return {{"kind", device.kind},
          {"name", device.name},
          {"memory_bytes", device.memory_bytes},
          {"count", device.count}};
}

// So many times slower.
void SlowDown(double factor, RankSpeed& speed) {
  speed.layer_us *= factor;
  speed.launched_layer_us *= factor;
  speed.all_reduce_gb_s /= factor;
  for (SizedTime& point : speed.all_reduces) point.us *= factor;
  speed.send_us *= factor;
  speed.send_gb_s /= factor;
  for (FormatSpeed& format : speed.formats) {
    for (CurvePoint& point : format.linear) point.ns_per_byte *= factor;
    format.kv_gb_s /= factor;
    format.attention_gflop_s /= factor;
    format.products_gflop_s /= factor;
  }
}

}  // namespace

std::string HostProfile::source() const { return absl::StrCat("calibrated ", date, " on ", host); }

std::string HostProfile::device_text() const {
  if (!device.is_gpu()) return backend;
  return absl::StrFormat("%d x %s, %.1f GiB each", device.count, device.name,
                         static_cast<double>(device.memory_bytes) / 0x1p30);
}

RankSpeed HostProfile::SpeedOf(int tp, int groups, int threads) const {
  LS_CHECK(!speeds.empty());
  const double ranks = static_cast<double>(tp) * groups;
  const auto distance = [&](const RankSpeed& speed) {
    const double at_work =
        device.is_gpu() ? speed.ranks() / ranks : speed.ranks() / ranks * speed.threads / threads;
    return std::make_tuple((speed.tp > 1) != (tp > 1),  // alone there are no links
                           (speed.groups > 1) != (groups > 1), std::abs(std::log(at_work)),
                           std::abs(std::log(static_cast<double>(speed.tp) / tp)));
  };
  RankSpeed nearest = *std::min_element(
      speeds.begin(), speeds.end(),
      [&](const RankSpeed& a, const RankSpeed& b) { return distance(a) < distance(b); });
  SlowDown(device.is_gpu() ? std::max(1.0, ranks / device.count) : ranks / nearest.ranks(),
           nearest);
  nearest.tp = tp;
  nearest.groups = groups;
  nearest.threads = threads;
  return nearest;
}

double LinearSeconds(const FormatSpeed& speed, double weight_bytes, double tokens) {
  constexpr double kNano = 1e-9;
  LS_CHECK(!speed.linear.empty());
  return weight_bytes * kNano *
         OnCurve(speed.linear, &CurvePoint::tokens, &CurvePoint::ns_per_byte, tokens);
}

double AllReduceSecondsBeyondLayer(const RankSpeed& speed, double bytes) {
  if (speed.all_reduces.empty()) return bytes / (speed.all_reduce_gb_s * kGiga);
  const double all = OnCurve(speed.all_reduces, &SizedTime::bytes, &SizedTime::us, bytes);
  return std::max(0.0, all - speed.all_reduces.front().us) * kMicro;
}

absl::StatusOr<RankSpeed> ToRankSpeed(const json& value, const std::string& where) {
  const JsonObject object{value, where};
  RankSpeed speed;
  ASSIGN_OR_RETURN(speed.tp, object.Integer("tp", 1, kMaxRanks));
  ASSIGN_OR_RETURN(speed.groups, object.Integer("groups", 1, kMaxRanks));
  ASSIGN_OR_RETURN(speed.threads, object.Integer("threads", 1, kMaxRanks));
  ASSIGN_OR_RETURN(speed.layer_us, object.Number("layer_us", 0, 1e9));
  if (Has(object, "launched_layer_us")) {
    ASSIGN_OR_RETURN(speed.launched_layer_us, object.Number("launched_layer_us", 0, 1e9));
  }
  if (speed.tp > 1) {
    ASSIGN_OR_RETURN(speed.all_reduce_gb_s, object.Number("all_reduce_gb_s", kMinRate, kMaxRate));
  }
  if (Has(object, "all_reduces")) {
    ASSIGN_OR_RETURN(speed.all_reduces, ToCurve(object, "all_reduces", kBytes, kMicroseconds));
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
  if (speed.launched_layer_us > 0) out["launched_layer_us"] = speed.launched_layer_us;
  if (speed.tp > 1) out["all_reduce_gb_s"] = speed.all_reduce_gb_s;
  if (!speed.all_reduces.empty()) {
    out["all_reduces"] = CurveJson(speed.all_reduces, kBytes, kMicroseconds);
  }
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
  if (const auto version = object.Integer("version", kVersion, kVersion); !version.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(version.status().message(), ": calibrate again"));
  }
  ASSIGN_OR_RETURN(profile.host, object.Text("host"));
  ASSIGN_OR_RETURN(profile.date, object.Text("date"));
  ASSIGN_OR_RETURN(profile.backend, object.Text("backend"));
  ASSIGN_OR_RETURN(profile.device, ToDevice(object));
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
                      {"device", DeviceJson(profile.device)},
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

std::string DefaultProfilePath(const std::string& device_kind) {
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
  const std::string suffix = device_kind == "cpu" ? "" : absl::StrCat(".", device_kind);
  return absl::StrCat(directory, "/lockstep/", host, suffix, ".json");
}

}  // namespace lockstep::plan
