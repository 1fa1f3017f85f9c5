// lockstep serve: the whole server on this host: checks everything, starts the controller here and
// the ranks as one MPI job.
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/backend.h"
#include "kernels/base/status_macros.h"
#include "launcher/cli/command.h"
#include "launcher/cli/serving_flags.h"
#include "launcher/cli/values.h"
#include "launcher/job/mpi_command.h"
#include "launcher/job/runtime_dir.h"
#include "launcher/serving/capacity.h"
#include "launcher/serving/controller_options.h"
#include "launcher/serving/serve_report.h"
#include "launcher/serving/serve_session.h"
#include "model/checkpoint/inspect.h"

namespace lockstep {
namespace {

constexpr char kCommand[] = "serve";

struct RestartFlags {
  int max_restarts = 5;
  double window_seconds = 300.0;
};

struct ServeOptions {
  ModelFlags model;
  RankFlags rank;
  ControllerFlags controller;
  KvCacheFlags kv_cache;
  RestartFlags restart;
};

// Everything that is known before a process starts.
struct ServePlan {
  ModelSummary summary;
  Capacity capacity;
  HostPort listen;
  RankFlags rank;  // with the number of threads decided
  std::filesystem::path mpirun;
  std::filesystem::path program;  // this one: the ranks run it too
};

absl::StatusOr<ServePlan> CheckAll(const ServeOptions& options) {
  ServePlan plan;
  ASSIGN_OR_RETURN(plan.listen, ParseHostPort(options.controller.listen));
  ASSIGN_OR_RETURN(plan.summary,
                   InspectModel(options.model.model, options.model.tp, options.model.pp));
  RETURN_IF_ERROR(plan.summary.tensor_check);
  ASSIGN_OR_RETURN(
      plan.capacity,
      PlanCapacity({plan.summary.config, options.model, options.rank.dtype, options.kv_cache,
                    AvailableMemoryBytes() / options.controller.replicas}));
  plan.rank = options.rank;
  plan.rank.threads = ThreadsPerRank(
      options.rank, options.controller.replicas * options.model.tp * options.model.pp);
  RETURN_IF_ERROR(MakeCpuBackend({1, options.rank.isa}).status());
  ASSIGN_OR_RETURN(plan.mpirun, FindMpirun());
  std::error_code error;
  plan.program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::UnavailableError("cannot find this program in /proc: is it mounted?");
  return plan;
}

absl::Status Serve(const ServeOptions& options, InterruptWatcher& interrupts) {
  ServeReport report(options.controller.json, options.model, options.controller.replicas);
  ASSIGN_OR_RETURN(const ServePlan plan, CheckAll(options));
  ASSIGN_OR_RETURN(const RuntimeDir runtime_dir, RuntimeDir::Create());
  ASSIGN_OR_RETURN(const RuntimeDir memory_dir, RuntimeDir::CreateInMemory());
  ASSIGN_OR_RETURN(const std::string secret, DrawSecret());

  SessionOptions session;
  ASSIGN_OR_RETURN(session.controller, MakeControllerOptions(options.model, options.controller));
  session.controller.worker_listen = {
      absl::StrCat("unix:", (runtime_dir.path() / "ranks").string())};
  session.controller.secret = secret;
  session.listen_host = plan.listen.host;
  session.drain_timeout = absl::Seconds(options.controller.drain_seconds);
  session.restarts = {.max_restarts = options.restart.max_restarts,
                      .window = absl::Seconds(options.restart.window_seconds)};
  session.make_job = [&](int replica, uint64_t epoch,
                         const std::string& worker_address) -> absl::StatusOr<JobSpec> {
    std::vector<std::string> worker = {plan.program.string()};
    const WorkerLaunch launch{worker_address, replica, epoch, plan.capacity.num_kv_blocks,
                              options.controller.security.worker_tls};
    for (std::string& argument : WorkerArguments(options.model, plan.rank, launch)) {
      worker.push_back(std::move(argument));
    }
    return JobSpec{.command = LocalMpiCommand(plan.mpirun, options.model.tp * options.model.pp,
                                              {runtime_dir.path(), memory_dir.path()}, worker),
                   .environment = JobEnvironment(),
                   .input = absl::StrCat(secret, "\n"),
                   .private_network = true};
  };
  report.Model(plan.summary);
  report.Plan(plan.capacity, plan.rank.threads);
  report.Warn(SecurityWarnings(session.controller));
  return ServeSession(std::move(session), report, interrupts).Run();
}

int RunServe(const ServeOptions& options) {
  InterruptWatcher interrupts;
  const absl::Status status = Serve(options, interrupts);
  return status.ok() ? kExitOk : Fail(kCommand, status);
}

void AddRestartFlags(CLI::App& command, RestartFlags& flags) {
  const char* group = "Recovery";
  command
      .add_option("--max-restarts", flags.max_restarts,
                  "of lost ranks within the window; one more ends the server; 0 = never restart")
      ->type_name("N")
      ->check(Between(0, 1000000))
      ->capture_default_str()
      ->group(group);
  command.add_option("--restart-window-seconds", flags.window_seconds, "over which restarts count")
      ->type_name("SECONDS")
      ->check(Between(1, 1e6))
      ->capture_default_str()
      ->group(group);
}

}  // namespace

void AddServeCommand(CLI::App& program, CommandBody& chosen) {
  ServeOptions* options = nullptr;
  CLI::App* command = AddCommand(program, chosen, kCommand, "Serve a model from ranks on this host",
                                 &RunServe, options);
  AddModelFlags(*command, options->model);
  AddRankFlags(*command, options->rank);
  auto* gib = command
                  ->add_option("--kv-cache-gib", options->kv_cache.gib,
                               "KV cache over all ranks (default: half of the free memory, at most "
                               "4, and no more than can be used)")
                  ->type_name("GIB")
                  ->check(Between(1e-6, 1e6))
                  ->group("Limits");
  command->add_option("--num-kv-blocks", options->kv_cache.num_blocks, "the same in blocks")
      ->type_name("N")
      ->check(Between(1, 1 << 30))
      ->excludes(gib)
      ->group("Limits");
  AddControllerFlags(*command, options->controller);
  AddRestartFlags(*command, options->restart);
  command->footer(
      "A lost rank is a pause: its job is killed and started again, and requests continue where "
      "they\n"
      "were, token for token.\n"
      "Ctrl-C stops accepting requests and lets running ones finish; a second one stops at once.\n"
      "Exit codes: 0 stopped on request, 1 a failure, 2 wrong usage.");
}

}  // namespace lockstep
