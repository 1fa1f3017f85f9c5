#include "launcher/serving/gateway_process.h"

#include <limits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_clock.h"
#include "launcher/cli/values.h"
#include "launcher/job/mpi_command.h"
#include "nlohmann/json.hpp"
#include "runtime/security/reachability.h"

namespace lockstep {
namespace {

// For clients to take what is left of their answers.
constexpr int kDrainSeconds = 5;
constexpr absl::Duration kGrace = absl::Seconds(kDrainSeconds + 1);
// From the end of its output to its own.
constexpr absl::Duration kEndTimeout = absl::Seconds(1);
// One that listened for so long did not die of its start.
constexpr absl::Duration kSettled = absl::Seconds(1);
constexpr RestartLimits kWithoutLimit = {.max_restarts = std::numeric_limits<int>::max(),
                                         .window = absl::Minutes(5)};

// Without what would tell a client of this user's whose name to speak in.
std::vector<std::string> GatewayEnvironment() {
  std::vector<std::string> variables = JobEnvironment();
  std::erase_if(variables, [](const std::string& variable) {
    return absl::StartsWith(variable, "LOCKSTEP_TLS_") ||
           absl::StartsWith(variable, "LOCKSTEP_TOKEN_FILE=") ||
           absl::StartsWith(variable, "LOCKSTEP_SERVER=");
  });
  return variables;
}

std::vector<std::string> GatewayCommand(const GatewayLaunch& launch) {
  std::vector<std::string> command = {launch.program.Path().string(),
                                      "gateway",
                                      "--json",
                                      "--server",
                                      launch.server,
                                      "--listen",
                                      launch.http_listen,
                                      "--drain-seconds",
                                      absl::StrCat(kDrainSeconds)};
  const auto add = [&](const char* flag, const std::string& value) {
    if (!value.empty()) command.insert(command.end(), {flag, value});
  };
  add("--https-cert", launch.tls.certificate);
  add("--https-key", launch.tls.key);
  add("--https-client-ca", launch.tls.authority);
  add("--access-log", launch.access_log);
  for (const std::string& host : launch.allowed_hosts) add("--allowed-host", host);
  for (const std::string& origin : launch.allowed_origins) add("--allowed-origin", origin);
  if (launch.insecure_listen) command.push_back("--insecure-listen");
  return command;
}

}  // namespace

absl::StatusOr<std::optional<GatewayLaunch>> PlanGateway(const ControllerFlags& flags,
                                                         const std::filesystem::path& directory,
                                                         const KeptFile& program,
                                                         ControllerOptions& controller) {
  if (flags.http_listen.empty()) return std::nullopt;
  const ServiceSecurityFlags& security = flags.security;
  RETURN_IF_ERROR(
      CheckExposure({.flag = "--http-listen",
                     .address = flags.http_listen,
                     .is_permitted = !security.client_tls.empty() || security.insecure_listen,
                     .tls_flags = "--tls-cert and --tls-key"}));
  controller.local_listen = absl::StrCat("unix:", (directory / "gateway.socket").string());
  return GatewayLaunch{program,
                       controller.local_listen,
                       flags.http_listen,
                       flags.access_log,
                       flags.allowed_hosts,
                       flags.allowed_origins,
                       security.client_tls,
                       security.insecure_listen};
}

GatewayProcess::GatewayProcess(const GatewayLaunch& launch, ServeReport& report)
    : launch_(launch), report_(report), restarts_(kWithoutLimit) {}

absl::StatusOr<std::unique_ptr<GatewayProcess>> GatewayProcess::Start(const GatewayLaunch& launch,
                                                                      ServeReport& report) {
  std::unique_ptr<GatewayProcess> gateway(new GatewayProcess(launch, report));
  RETURN_IF_ERROR(gateway->StartProcess());
  return gateway;
}

GatewayProcess::~GatewayProcess() {
  if (process_) process_->Terminate(kGrace);
}

absl::Status GatewayProcess::StartProcess() {
  start_at_ = absl::InfiniteFuture();
  listened_at_ = absl::InfiniteFuture();
  last_words_.clear();
  const JobSpec spec = {.command = GatewayCommand(launch_), .environment = GatewayEnvironment()};
  ASSIGN_OR_RETURN(
      process_, JobSupervisor::Start(spec, [this](absl::string_view line) { HandleLine(line); }));
  return absl::OkStatus();
}

absl::Status GatewayProcess::Step() {
  if (process_) return process_->ReadOutput() ? HandleEnd() : absl::OkStatus();
  if (SteadyNow() < start_at_) return absl::OkStatus();
  if (const absl::Status started = StartProcess(); !started.ok()) {
    last_words_ = std::string(started.message());
    return HandleEnd();
  }
  return absl::OkStatus();
}

void GatewayProcess::HandleLine(absl::string_view line) {
  const auto event = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (event.is_object() && event.contains("url") && event["url"].is_string()) {
    const std::string url = event["url"];
    launch_.http_listen = url.substr(url.find("://") + 3);
    has_ever_listened_ = true;
    listened_at_ = SteadyNow();
    return report_.Gateway(url, process_->pid());
  }
  if (absl::ConsumePrefix(&line, "lockstep gateway: ")) {
    last_words_ = std::string(line);
    return;
  }
  absl::ConsumePrefix(&line, "Warning ");
  report_.Warn({absl::StrCat("gateway: ", absl::StripAsciiWhitespace(line))});
}

absl::Status GatewayProcess::HandleEnd() {
  std::string reason = last_words_;
  bool was_killed = false;
  if (process_ && reason.empty()) {
    if (!process_->Wait(SteadyNow() + kEndTimeout)) process_->Terminate(absl::ZeroDuration());
    reason = process_->exit()->ToString();
    was_killed = process_->exit()->signal != 0;
  }
  process_.reset();
  if (!has_ever_listened_ && !was_killed)
    return absl::UnavailableError(absl::StrCat("the gateway: ", reason));
  const absl::Time now = SteadyNow();
  const absl::Duration delay =
      restarts_.OnLoss(now, now - listened_at_ >= kSettled).value_or(absl::ZeroDuration());
  start_at_ = now + delay;
  report_.Warn({absl::StrCat("the gateway ended (", reason,
                             "), which cost its clients their "
                             "connections; it starts again",
                             delay > absl::ZeroDuration() ? " in " : "",
                             delay > absl::ZeroDuration() ? absl::FormatDuration(delay) : "")});
  return absl::OkStatus();
}

}  // namespace lockstep
