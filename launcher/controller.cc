// lockstep controller: the server without its ranks, which are placed by hand with mpirun or srun.
#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "launcher/cli/add_command.h"
#include "launcher/cli/serving_flags.h"
#include "launcher/cli/values.h"
#include "launcher/job/runtime_dir.h"
#include "launcher/serving/controller_options.h"
#include "launcher/serving/serve_report.h"
#include "launcher/serving/serve_session.h"

namespace lockstep {
namespace {

constexpr char kControllerCommand[] = "controller";

struct ControllerCommandOptions {
  ModelFlags model;
  ControllerFlags controller;
  std::string worker_listen = "127.0.0.1:50052";
  std::string secret_file;
  double recovery_seconds = 300.0;
  bool keep_ranks = false;
};

// Of the file, which is made with a fresh secret when there is none.
absl::StatusOr<std::string> SecretOf(const std::filesystem::path& file) {
  std::error_code error;
  if (std::filesystem::exists(file, error)) return ReadSecretFile(file);
  ASSIGN_OR_RETURN(std::string secret, DrawSecret());
  RETURN_IF_ERROR(WriteNewSecretFile(file, secret));
  return secret;
}

absl::Status Control(const ControllerCommandOptions& options, InterruptWatcher& interrupts,
                     ServeReport& report) {
  std::optional<EndAtInterrupt> early(std::in_place, interrupts, [&] {
    report.Stopped(kBeforeServing);
    return kExitOk;
  });
  ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(options.controller.listen));
  ASSIGN_OR_RETURN(const ModelSummary summary, InspectServedModel(options.model));
  SessionOptions session;
  ASSIGN_OR_RETURN(session.controller, UsageErrorIfInvalid(MakeControllerOptions(
                                           options.model, summary.config, options.controller)));
  session.controller.worker_listen = {options.worker_listen};
  ASSIGN_OR_RETURN(session.controller.secret, SecretOf(options.secret_file));
  early.reset();
  session.controller.epoch = 0;
  session.controller.adopt_epochs = true;
  session.controller.recovery_window = absl::Seconds(options.recovery_seconds);
  session.controller.keep_ranks = options.keep_ranks;
  session.listen_host = listen.host;
  session.drain_timeout = absl::Seconds(options.controller.drain_seconds);
  ASSIGN_OR_RETURN(session.metrics,
                   UsageErrorIfInvalid(MetricsListener(options.controller, session.controller)));
  std::optional<RuntimeDir> files;  // of the gateway's socket
  if (!options.controller.http_listen.empty()) {
    ASSIGN_OR_RETURN(RuntimeDir made, RuntimeDir::Create());
    files.emplace(std::move(made));
    ASSIGN_OR_RETURN(const KeptProgram program, KeptProgram::Keep(files->path()));
    ASSIGN_OR_RETURN(session.gateway,
                     UsageErrorIfInvalid(PlanGateway(options.controller, files->path(),
                                                     program.program(), session.controller)));
  }
  session.secret_file = options.secret_file;
  report.Model(summary, session.controller.model_name);
  report.Warn(SecurityWarnings(session.controller));
  return ServeSession(std::move(session), report, interrupts).Run();
}

int RunController(const ControllerCommandOptions& options) {
  TakeWriteErrors();
  InterruptWatcher interrupts;
  ServeReport report(options.controller.json, options.model, options.controller.replicas);
  const absl::Status status = Control(options, interrupts, report);
  if (status.ok()) return kExitOk;
  report.Failed(status.message());
  return Fail(kControllerCommand, status);
}

}  // namespace

void AddControllerCommand(CLI::App& program, CommandBody& chosen) {
  ControllerCommandOptions* options = nullptr;
  CLI::App* command =
      AddCommand(program, chosen, kControllerCommand,
                 "The server without its ranks, which are placed by hand", &RunController, options);
  AddModelFlags(*command, options->model);
  AddControllerFlags(*command, options->controller);
  const char* group = "Ranks";
  command
      ->add_option("--worker-listen", options->worker_listen,
                   "where ranks connect; use --worker-tls-* beyond a private network")
      ->type_name("HOST:PORT")
      ->check(HostAndPort())
      ->capture_default_str()
      ->group(group);
  command
      ->add_option("--secret-file", options->secret_file,
                   "file whose first line every rank must show; made when it does not exist")
      ->type_name("FILE")
      ->required()
      ->group(group);
  command
      ->add_option("--recovery-seconds", options->recovery_seconds,
                   "how long requests wait for new ranks to serve after a loss; ranks that load "
                   "are waited for")
      ->type_name("SECONDS")
      ->check(Between(0, 1e6))
      ->capture_default_str()
      ->group(group);
  command
      ->add_flag("--keep-ranks", options->keep_ranks,
                 "leave the ranks to the next controller, weights in memory, also when this one is "
                 "stopped in order: by default they then end with it")
      ->group(group);
  command->footer(
      "The ranks are started with `mpirun -n N --bind-to none lockstep worker` (see its --help).\n"
      "Ranks outlive a controller that dies, or is stopped with --keep-ranks: it may be started "
      "again.\nSo may lost ranks: requests wait for them.\n"
      "Exit codes: 0 stopped on request; 1 a failure that another start may not meet (no such "
      "model, port taken); 2 flags that are wrong, or do not fit the model.");
}

}  // namespace lockstep
