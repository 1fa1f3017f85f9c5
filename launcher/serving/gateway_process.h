// `lockstep gateway` as a child process of a server: what strangers send is read outside the
// process that owns requests and ranks, and a gateway that crashes costs its own connections only.
//
// Used by main's thread. A gateway that ends is started again, at the same address, however often:
// at once when it had listened for a second, else a little later each time.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/cli/serving_flags.h"
#include "launcher/job/job_supervisor.h"
#include "launcher/job/kept_program.h"
#include "launcher/job/restart_policy.h"
#include "launcher/serving/serve_report.h"
#include "runtime/controller/controller.h"

namespace lockstep {

struct GatewayLaunch {
  KeptFile program;         // `lockstep`
  std::string server;       // "unix:/path", where the controller lets it in
  std::string http_listen;  // "HOST:PORT"; port 0 = any free one, and the same after that
  std::string access_log;   // a file; empty = none
  std::vector<std::string> allowed_hosts;
  std::vector<std::string> allowed_origins;
  TlsFiles tls;  // empty = in clear
  bool insecure_listen = false;
};

// As secure as the clients' service. Nothing without --http-listen; else makes the controller
// listen on a socket in `directory`, which only this user can enter. Errors as
// CheckExposure's.
absl::StatusOr<std::optional<GatewayLaunch>> PlanGateway(const ControllerFlags& flags,
                                                         const std::filesystem::path& directory,
                                                         const KeptFile& program,
                                                         ControllerOptions& controller);

class GatewayProcess {
 public:
  // Tells the report when it listens, and when and why it ended. UNAVAILABLE when the program
  // cannot be run.
  static absl::StatusOr<std::unique_ptr<GatewayProcess>> Start(const GatewayLaunch& launch,
                                                               ServeReport& report);
  // Lets it finish the answers that the controller has given, for a few seconds.
  ~GatewayProcess();
  GatewayProcess(const GatewayProcess&) = delete;
  GatewayProcess& operator=(const GatewayProcess&) = delete;

  // Step is due when this is readable (-1: nothing runs), or at that time.
  int fd() const { return process_ ? process_->fd() : -1; }
  absl::Time next_start() const { return start_at_; }
  // UNAVAILABLE with its own words when it ended by itself before it ever listened (the port is
  // taken).
  absl::Status Step();

 private:
  GatewayProcess(const GatewayLaunch& launch, ServeReport& report);
  absl::Status StartProcess();
  void HandleLine(absl::string_view line);
  absl::Status HandleEnd();

  GatewayLaunch launch_;
  ServeReport& report_;
  RestartPolicy restarts_;
  absl::Time start_at_ = absl::InfiniteFuture();
  bool has_ever_listened_ = false;
  absl::Time listened_at_ = absl::InfiniteFuture();  // since its last start
  std::string last_words_;                           // likewise; why it ended by itself
  std::unique_ptr<JobSupervisor> process_;           // last: its output goes to HandleLine
};

}  // namespace lockstep
