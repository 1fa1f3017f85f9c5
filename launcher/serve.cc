// lockstep serve: the whole server: checks everything, starts the controller here and the ranks as
// one MPI job on this host, on others, or over a Slurm allocation.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "kernels/base/available_memory.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu_backend_options.h"
#include "launcher/cli/add_command.h"
#include "launcher/cli/host_places.h"
#include "launcher/cli/launch_flags.h"
#include "launcher/cli/serving_flags.h"
#include "launcher/cli/values.h"
#include "launcher/job/mpi_command.h"
#include "launcher/job/runtime_dir.h"
#include "launcher/job/weight_memory.h"
#include "launcher/serving/capacity.h"
#include "launcher/serving/controller_options.h"
#include "launcher/serving/launch_plan.h"
#include "launcher/serving/ranks_devices.h"
#include "launcher/serving/serve_report.h"
#include "launcher/serving/serve_session.h"
#include "launcher/serving/speed_prediction.h"
#include "model/checkpoint/inspect.h"

namespace lockstep {
namespace {

constexpr char kServeCommand[] = "serve";

struct RestartFlags {
  int max_restarts = 5;
  double window_seconds = 300.0;
  double kill_timeout_seconds = 60.0;
};

struct ServeOptions {
  ModelFlags model;
  RankFlags rank;
  ControllerFlags controller;
  KvCacheFlags kv_cache;
  RestartFlags restart;
  LaunchFlags launch;

  ServeOptions() { rank.weight_cache = "memory"; }
};

// Everything that is known before a process starts.
struct ServePlan {
  ModelSummary summary;
  PlannedCapacity capacity;
  HostPort listen;
  LaunchPlan launch;
  RankFlags rank;                       // as ranks are told
  RanksDevices devices;                 // of all ranks
  std::optional<int> threads_per_rank;  // nothing: ranks elsewhere find out themselves
};

// Ranks on other hosts cannot reach memory of this process.
bool KeepsWeights(const RankFlags& rank, const LaunchPlan& launch) {
  return rank.weight_cache == "memory" && launch.kind == LaunchPlan::Kind::kThisHost;
}

// Whether replicas have one copy of them.
bool SharesWeights(const RankFlags& rank, const LaunchPlan& launch, const RanksDevices& devices) {
  return rank.weight_cache != "none" && launch.kind == LaunchPlan::Kind::kThisHost &&
         !devices.may_be_gpus();
}

absl::StatusOr<std::unique_ptr<WeightMemory>> MakeWeightMemory(const RankFlags& rank,
                                                               const LaunchPlan& launch,
                                                               const LaunchFiles& files) {
  if (!KeepsWeights(rank, launch)) return nullptr;
  return WeightMemory::Create(launch.world_size, files.directory.path());
}

// GPUs take their time where nothing is in memory yet: each must be initialized (seconds a GPU
// without a persistence daemon, for all ranks of a host), libraries of hundreds of MB come from
// storage that hosts share, and NCCL joins the ranks.
absl::Duration PreflightLimit(const LaunchFlags& flags, bool on_gpus) {
  const double usual = on_gpus ? kGpuPreflightSeconds : kPreflightSeconds;
  return absl::Seconds(flags.preflight_seconds.value_or(usual));
}

// Ranks divide what they see of a host among those of all replicas there. A step of a Slurm
// allocation may see no more than the processors of its own tasks.
RankFlags RankFlagsIn(const LaunchPlan& launch, int num_replicas, RankFlags flags) {
  if (!launch.slurm.has_value()) return flags;
  if (num_replicas > 1) flags.shares_cores = true;
  if (flags.threads == 0) flags.threads = std::min(launch.slurm->cpus_per_task, kMaxThreadsPerRank);
  return flags;
}

// Of GPUs' hosts, which ranks check for their own replica alone.
absl::Status CheckOffload(const ServeOptions& options, const ServePlan& plan) {
  if (plan.launch.kind != LaunchPlan::Kind::kThisHost || !plan.devices.may_be_gpus()) {
    return absl::OkStatus();
  }
  const int64_t needed = plan.capacity.offload_bytes * options.controller.replicas;
  const int64_t available = AvailableMemoryBytes();
  if (needed <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "copies of KV blocks would take ", FormatBytes(needed), ", ", FormatBytes(available),
      " of memory are available on this host: lower --kv-offload-gib"));
}

absl::StatusOr<ServePlan> CheckAll(const ServeOptions& options) {
  ServePlan plan;
  ASSIGN_OR_RETURN(plan.listen, ParseHostPort(options.controller.listen));
  ASSIGN_OR_RETURN(plan.summary, InspectServedModel(options.model));
  ASSIGN_OR_RETURN(const ProcessGrid grid, ProcessGrid::Create(options.model.tp, options.model.pp));
  const int num_replicas = options.controller.replicas;
  ASSIGN_OR_RETURN(plan.launch,
                   UsageErrorIfInvalid(PlanLaunch(options.launch, grid, num_replicas)));
  if (options.kv_cache.offload_gib.has_value() && options.controller.no_prefix_cache) {
    return UsageErrorIfInvalid(absl::InvalidArgumentError(
        "--kv-offload-gib keeps cached prefixes, of which there are none with --no-prefix-cache"));
  }
  plan.rank = RankFlagsIn(plan.launch, num_replicas, options.rank);
  ASSIGN_OR_RETURN(plan.devices, DevicesOf(options.rank, plan.launch));
  RETURN_IF_ERROR(UsageErrorIfInvalid(CheckFormats(options.model, options.rank, plan.devices)));
  ASSIGN_OR_RETURN(
      plan.capacity,
      UsageErrorIfInvalid(PlanCapacity({plan.summary.config, options.model, options.rank,
                                        plan.devices, options.kv_cache, num_replicas,
                                        SharesWeights(options.rank, plan.launch, plan.devices)})));
  RETURN_IF_ERROR(CheckOffload(options, plan));
  if ((plan.devices.may_be_gpus() || !plan.launch.uses_this_host) &&
      !options.kv_cache.gib.has_value() && !options.kv_cache.num_blocks.has_value()) {
    plan.capacity.num_kv_blocks = 0;  // ranks find out what they have room for
  }
  if (plan.rank.threads > 0 || plan.launch.kind == LaunchPlan::Kind::kThisHost) {
    plan.threads_per_rank = ThreadsPerRank(plan.rank, plan.launch.max_ranks_per_host());
  }
  RETURN_IF_ERROR(CheckIsa(options.rank.isa));
  return plan;
}

// Of ranks on this host, where it was calibrated; says what a usual request should see.
void PredictSpeed(const ServeOptions& options, const ServePlan& plan, ControllerOptions& controller,
                  ServeReport& report) {
  if (plan.launch.kind != LaunchPlan::Kind::kThisHost) return;
  const auto predictor = MakeSpeedPredictor(
      {options.model, options.rank, plan.devices.may_be_gpus(), *plan.threads_per_rank,
       options.controller.replicas, plan.capacity.num_kv_blocks});
  if (!predictor.ok()) {
    return report.Warn({absl::StrCat("no speed is predicted: ", predictor.status().message())});
  }
  if (*predictor == nullptr) return;
  controller.predict_speed = *predictor;
  const ServedLoad usual = UsualRequest(plan.capacity.max_model_len);
  if (const auto prediction = controller.predict_speed(usual)) report.Predicted(usual, *prediction);
}

absl::Status Serve(const ServeOptions& options, InterruptWatcher& interrupts, ServeReport& report) {
  std::optional<EndAtInterrupt> early(std::in_place, interrupts, [&] {
    report.Stopped(kBeforeServing);
    return kExitOk;
  });
  ASSIGN_OR_RETURN(const ServePlan plan, CheckAll(options));
  early.reset();
  ASSIGN_OR_RETURN(RuntimeDir directory, RuntimeDir::Create());
  ASSIGN_OR_RETURN(RuntimeDir memory, RuntimeDir::CreateInMemory());
  if (plan.launch.kind == LaunchPlan::Kind::kThisHost && plan.launch.world_size > 1) {
    const auto num_ranks = static_cast<int64_t>(plan.launch.host_of_rank.size());
    RETURN_IF_ERROR(memory.CheckRoom(num_ranks * kMpiSegmentBytes));
  }
  ASSIGN_OR_RETURN(KeptProgram program, KeptProgram::Keep(directory.path()));
  const LaunchFiles files{std::move(directory), std::move(memory), std::move(program)};
  ASSIGN_OR_RETURN(const std::unique_ptr<WeightMemory> weights,
                   MakeWeightMemory(options.rank, plan.launch, files));
  ASSIGN_OR_RETURN(const std::string secret, DrawSecret());

  SessionOptions session;
  ASSIGN_OR_RETURN(session.controller,
                   UsageErrorIfInvalid(MakeControllerOptions(options.model, plan.summary.config,
                                                             options.controller)));
  session.controller.worker_listen = {
      !plan.launch.worker_listen.empty()
          ? plan.launch.worker_listen
          : absl::StrCat("unix:", (files.directory.path() / "ranks.socket").string())};
  session.controller.secret = secret;
  session.listen_host = plan.listen.host;
  session.drain_timeout = absl::Seconds(options.controller.drain_seconds);
  ASSIGN_OR_RETURN(session.metrics,
                   UsageErrorIfInvalid(MetricsListener(options.controller, session.controller)));
  ASSIGN_OR_RETURN(session.gateway,
                   UsageErrorIfInvalid(PlanGateway(options.controller, files.directory.path(),
                                                   files.program.program(), session.controller)));
  session.restarts = {.max_restarts = options.restart.max_restarts,
                      .window = absl::Seconds(options.restart.window_seconds)};
  session.kill_timeout = absl::Seconds(options.restart.kill_timeout_seconds);
  session.preflight_limit = PreflightLimit(options.launch, plan.devices.may_be_gpus());
  for (int replica = 0; replica < options.controller.replicas; ++replica) {
    session.hosts_of_ranks.push_back(plan.launch.HostsOf(replica));
  }
  const auto ranks_wait_seconds =
      static_cast<int64_t>(std::ceil(absl::ToDoubleSeconds(session.preflight_limit))) + 30;
  session.make_job = [&, ranks_wait_seconds](int replica, uint64_t epoch,
                                             const std::string& worker_address) {
    // The ranks of one job find their places on hosts by themselves.
    const WorkerLaunch launch{
        worker_address, replica, epoch, plan.capacity.num_kv_blocks,
        options.kv_cache.offload_gib.value_or(0) / (options.model.tp * options.model.pp),
        ranks_wait_seconds, options.launch.allow_tp_across_nodes,
        options.controller.security.worker_tls,
        // On one host ranks may be in a network namespace of their own.
        plan.launch.kind == LaunchPlan::Kind::kThisHost ? "" : plan.launch.network,
        options.controller.replicas > 1 ? FormatHostPlaces(plan.launch.PlacesOf(replica)) : "",
        weights ? weights->socket().string() : ""};
    return MakeJob(plan.launch, files, replica, WorkerArguments(options.model, plan.rank, launch),
                   secret);
  };
  report.Model(plan.summary, session.controller.model_name);
  report.Plan(plan.capacity, plan.threads_per_rank);
  PredictSpeed(options, plan, session.controller, report);
  report.Warn(CacheWarnings(plan.capacity, plan.summary.config));
  report.Warn(SecurityWarnings(session.controller));
  return ServeSession(std::move(session), report, interrupts).Run();
}

int RunServe(const ServeOptions& options) {
  TakeWriteErrors();
  InterruptWatcher interrupts;
  ServeReport report(options.controller.json, options.model, options.controller.replicas);
  const absl::Status status = Serve(options, interrupts, report);
  if (status.ok()) return kExitOk;
  report.Failed(status.message());
  return Fail(kServeCommand, status);
}

void AddRestartFlags(CLI::App& command, RestartFlags& flags) {
  const char* group = "Recovery";
  command
      .add_option(
          "--max-restarts", flags.max_restarts,
          "how often a replica's lost ranks are started again within --restart-window-seconds, "
          "and how often in a row without serving in between (0 to 1000000; 0 = never); after "
          "that the replica is given up, and with the last one the server ends")
      ->type_name("N")
      ->check(Between(0, 1000000))
      ->capture_default_str()
      ->group(group);
  command.add_option("--restart-window-seconds", flags.window_seconds, "over which restarts count")
      ->type_name("SECONDS")
      ->check(Between(1, 1e6))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--kill-timeout-seconds", flags.kill_timeout_seconds,
                  "how long killed ranks on this host may take to be gone (a driver may have a "
                  "GPU's memory to give back); then their replica is given up")
      ->type_name("SECONDS")
      ->check(Between(0.1, 1e6))
      ->capture_default_str()
      ->group(group);
}

}  // namespace

void AddServeCommand(CLI::App& program, CommandBody& chosen) {
  ServeOptions* options = nullptr;
  CLI::App* command =
      AddCommand(program, chosen, kServeCommand, "Serve a model from ranks on this host or others",
                 &RunServe, options);
  AddModelFlags(*command, options->model);
  AddRankFlags(*command, options->rank);
  AddWeightCacheFlag(*command,
                     "keep packed weights for restarts: memory (of this program, for ranks on this "
                     "host), none, or a directory, for later starts, too",
                     options->rank);
  AddLaunchFlags(*command, options->launch);
  AddKvCacheFlags(*command,
                  "KV cache over all ranks of a replica (default: on GPUs what "
                  "--gpu-memory-utilization leaves; "
                  "on CPUs of this host half of the free memory, at most 4, on those elsewhere at "
                  "most 1 a rank; no more than can be used)",
                  "memory of hosts, over all ranks of a replica", options->kv_cache);
  AddControllerFlags(*command, options->controller);
  AddRestartFlags(*command, options->restart);
  command->footer(
      "A lost rank is a pause: its job is killed and started again, and requests continue where "
      "they\n"
      "were (on CPUs, and on GPUs with --deterministic, token for token as if nothing happened).\n"
      "Ctrl-C stops accepting requests and lets running ones finish; a second one stops at once.\n"
      "Exit codes: 0 stopped on request; 1 a failure that another start may not meet (no such "
      "model, no memory, port taken, no GPU); 2 flags that are wrong, or do not fit the model.");
}

}  // namespace lockstep
