// lockstep plan --calibrate, and the profiles that it leaves for plans to come.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <optional>

#include "absl/strings/str_cat.h"
#include "deploy/plan/gpu_calibration.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/text_file.h"
#include "launcher/base/signals.h"
#include "launcher/calibration/calibration.h"
#include "launcher/cli/command.h"
#include "launcher/plan_options.h"
#include "launcher/ranks/device_choice.h"

namespace lockstep {
namespace {

// Where `--calibrate` writes and plans read.
absl::StatusOr<std::string> ProfilePath(const std::string& named, const std::string& device_kind) {
  const std::string path = named.empty() ? plan::DefaultProfilePath(device_kind) : named;
  if (!path.empty()) return path;
  return absl::InvalidArgumentError(
      "neither XDG_CONFIG_HOME nor HOME says where the profile lies: name its file");
}

// Its directory, made when it is absent: better known before minutes of measuring.
absl::Status MakeRoomFor(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is a directory: name a file"));
  }
  const std::filesystem::path directory = std::filesystem::absolute(path, error).parent_path();
  std::filesystem::create_directories(directory, error);
  if (!error && ::access(directory.c_str(), W_OK) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write in ", directory.string()));
}

// "`lockstep plan --gpu cpu` and `lockstep serve` use it".
std::string UsersOf(const plan::HostProfile& profile, bool is_default) {
  const std::string gpu = profile.device.is_gpu() ? plan::CatalogNameOf(profile) : "cpu";
  const std::string planned = gpu.empty() ? "" : absl::StrCat("`lockstep plan --gpu ", gpu);
  if (!is_default) {
    return gpu.empty() ? "no built-in GPU is called so: plans cannot use it"
                       : absl::StrCat(planned, " --profile FILE` uses it");
  }
  return gpu.empty() ? "`lockstep serve` uses it; no built-in GPU is called so"
                     : absl::StrCat(planned, "` and `lockstep serve` use it");
}

absl::StatusOr<plan::HostProfile> Measure(const PlanOptions& options, const std::string& device) {
  CalibrationOptions calibration;
  calibration.quick = options.quick;
  calibration.weights = options.weights;
  calibration.device = device;
  calibration.sizes = options.probe_sizes;
  if (options.probe_seconds > 0) calibration.most_time = absl::Seconds(options.probe_seconds);
  if (options.tp || options.pp) {
    calibration.layout = {.tp = options.tp.value_or(1), .pp = options.pp.value_or(1)};
  }
  calibration.on_progress = [](const std::string& line) {
    std::fprintf(stderr, "%s\n", line.c_str());
  };
  InterruptWatcher interrupts;
  return Calibrate(calibration, interrupts);
}

}  // namespace

absl::StatusOr<std::optional<plan::HostProfile>> FindPlanProfile(const PlanOptions& options,
                                                                 const std::string& device_kind) {
  const auto path = ProfilePath(options.profile, device_kind);
  std::error_code error;
  if (options.profile.empty() && (!path.ok() || !std::filesystem::exists(*path, error))) {
    return std::nullopt;
  }
  RETURN_IF_ERROR(path.status());
  ASSIGN_OR_RETURN(plan::HostProfile profile, plan::LoadHostProfile(*path));
  if (profile.device.kind != device_kind) {
    return InFile(*path, absl::InvalidArgumentError(
                             absl::StrCat("was measured on ", profile.device_text(),
                                          ", not on what --gpu ", options.gpu, " asks for")));
  }
  return profile;
}

int RunCalibration(const PlanOptions& options) {
  const absl::StatusOr<DeviceSearch> search = GpusFor(options.device);
  if (!search.ok()) return Fail("plan", search.status());
  if (const std::string left_alone = search->LeftAlone(); !left_alone.empty()) {
    std::fprintf(stderr, "lockstep plan: %s\n", left_alone.c_str());
  }
  const std::string device = search->gpus.has_value() ? "cuda" : "cpu";
  const auto path = ProfilePath(options.calibrate, device);
  if (!path.ok()) return FailUsage("plan", std::string(path.status().message()));
  if (const absl::Status ready = MakeRoomFor(*path); !ready.ok()) {
    return Fail("plan", UsageErrorIfInvalid(ready));
  }
  const auto profile = Measure(options, device);
  if (!profile.ok()) return Fail("plan", profile.status());
  const std::string json = HostProfileJson(*profile);
  if (const absl::Status written = WritePlanFile(*path, json); !written.ok()) {
    return Fail("plan", written);
  }
  if (options.json) {
    std::printf("%s", json.c_str());
  } else {
    std::printf("Wrote %s: %s\n", path->c_str(),
                UsersOf(*profile, *path == plan::DefaultProfilePath(device)).c_str());
  }
  return kExitOk;
}

}  // namespace lockstep
