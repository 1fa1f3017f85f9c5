// lockstep worker: one rank of an MPI job. Started by `lockstep serve`, or by mpirun or srun for
// manual placement.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/notice.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/version.h"
#include "launcher/base/host_name.h"
#include "launcher/base/signals.h"
#include "launcher/cli/add_command.h"
#include "launcher/cli/host_places.h"
#include "launcher/cli/serving_flags.h"
#include "launcher/cli/values.h"
#include "launcher/job/job_output.h"
#include "launcher/job/network.h"
#include "launcher/job/parent_watch.h"
#include "launcher/job/process_state.h"
#include "launcher/job/runtime_dir.h"
#include "launcher/job/weight_memory.h"
#include "launcher/ranks/device_choice.h"
#include "launcher/ranks/mpi_rank.h"
#include "model/checkpoint/checkpoint.h"
#include "parallel/mpi_communicator.h"
#include "parallel/nccl_environment.h"
#include "runtime/worker/worker.h"

namespace lockstep {
namespace {

constexpr char kWorkerCommand[] = "worker";

struct WorkerCommandOptions {
  ModelFlags model;
  RankFlags rank;
  std::string controller = "127.0.0.1:50052";
  std::string secret_file;
  bool secret_stdin = false;
  bool allow_tp_across_nodes = false;
  bool announce = false;
  std::string weight_memory;
  RankTlsFlags tls;
  int replica = 0;
  uint64_t epoch = 0;
  std::string network;
  std::string host_places;
  double preflight_seconds = 300;
  double rejoin_seconds = 300;
  KvCacheFlags kv_cache;
};

absl::StatusOr<int64_t> MaxModelLen(const ModelFlags& flags) {
  if (flags.max_model_len > 0) return flags.max_model_len;
  ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(flags.model));
  return checkpoint->config().max_position_embeddings;
}

// One rank of each stage speaks: what it finds is mostly true of its stage, whose ranks are on one
// host (but for --allow-tp-across-nodes), and need not be of the others.
Notice NoticeOf(const ProcessGrid& grid, int rank) {
  if (grid.tp_rank_of(rank) != 0) return [](const std::string&) {};
  RankNotice notice = {.rank = rank, .host = HostName(), .stage = std::nullopt, .text = ""};
  if (grid.pp() > 1) notice.stage = grid.stage_of(rank);
  return [notice](const std::string& text) {
    RankNotice told = notice;
    told.text = OneLine(text);
    std::fprintf(stderr, "%s\n", FormatNotice(told).c_str());
  };
}

// Before NCCL starts. Where MPI has found a way that this host's addresses do not tell of, NCCL
// may.
void KeepNcclTo(const std::string& network, const Notice& notice) {
  if (network.empty()) return;
  const auto interfaces = InterfacesInNetwork(network);
  if (interfaces.ok()) return ConnectOver(*interfaces);
  notice(absl::StrCat("NCCL chooses its network itself: ", interfaces.status().message()));
}

// What the rank computes of the model.
absl::StatusOr<StageOptions> StageOf(const WorkerCommandOptions& flags) {
  StageOptions stage;
  stage.weights = WeightDTypeOf(flags.rank.dtype).value_or(WeightDType::kAuto);
  stage.kv_cache = KvDTypeOf(flags.rank.kv_cache_dtype).value_or(KvDType::kAuto);
  stage.quantize = QuantizationOf(flags.model.quantize).value_or(Quantization::kNone);
  stage.limits.block_size = flags.model.block_size;
  stage.limits.max_batched_tokens = flags.model.max_batched_tokens;
  stage.limits.max_num_seqs = flags.model.max_num_seqs;
  ASSIGN_OR_RETURN(stage.limits.max_model_len, MaxModelLen(flags.model));
  if (flags.rank.weight_cache != "none") stage.weight_cache = flags.rank.weight_cache;
  return stage;
}

// Collective over the job.
absl::StatusOr<DeviceOptions> PlacedDevice(const WorkerCommandOptions& flags,
                                           const MpiSession& session, const Notice& notice) {
  std::optional<HostPlace> place;
  if (!flags.host_places.empty()) {
    ASSIGN_OR_RETURN(const std::vector<HostPlace> places,
                     ParseHostPlaces(flags.host_places, session.world_size()));
    place = places[static_cast<size_t>(session.rank())];
  }
  ASSIGN_OR_RETURN(DeviceOptions device, TakeDevice(flags.rank, session, place, notice));
  if (device.gpu.has_value()) KeepNcclTo(flags.network, notice);
  return device;
}

absl::StatusOr<WorkerOptions> MakeWorkerOptions(const WorkerCommandOptions& flags,
                                                const ProcessGrid& grid,
                                                const MpiSession& session) {
  WorkerOptions options;
  options.controller_address = flags.controller;
  ASSIGN_OR_RETURN(options.secret,
                   flags.secret_stdin ? SecretOfStdin(session) : ReadSecretFile(flags.secret_file));
  ASSIGN_OR_RETURN(options.dial, RankDialSecurity(flags.tls));
  options.epoch = flags.epoch;
  options.replica = flags.replica;
  options.start_timeout = absl::Seconds(flags.preflight_seconds);
  options.rejoin_window = absl::Seconds(flags.rejoin_seconds);
  options.on_notice = NoticeOf(grid, session.rank());
  options.grid = grid;
  options.rank = session.rank();
  options.host = HostName();
  options.node = session.node();
  options.preflight = true;
  options.allow_tp_across_nodes = flags.allow_tp_across_nodes;
  options.version = Version();
  options.model = flags.model.model;
  ASSIGN_OR_RETURN(options.stage, StageOf(flags));
  ASSIGN_OR_RETURN(options.device, PlacedDevice(flags, session, options.on_notice));
  options.stage.num_load_threads = options.device.cpu.num_threads;
  options.stage.on_notice = options.on_notice;
  options.num_kv_blocks = flags.kv_cache.num_blocks;
  if (flags.kv_cache.gib.has_value()) {
    options.kv_cache_bytes = static_cast<int64_t>(std::llround(*flags.kv_cache.gib * 0x1p30));
  }
  if (flags.kv_cache.offload_gib.has_value()) {
    options.kv_offload_bytes =
        static_cast<int64_t>(std::llround(*flags.kv_cache.offload_gib * 0x1p30));
  }
  return options;
}

absl::Status RunRank(const WorkerCommandOptions& flags, const MpiSession& session) {
  ASSIGN_OR_RETURN(const ProcessGrid grid, ProcessGrid::Create(flags.model.tp, flags.model.pp));
  if (session.world_size() != grid.world_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the MPI job has ", session.world_size(), " ranks, but --tp ", grid.tp(),
                     " x --pp ", grid.pp(), " needs ", grid.world_size(),
                     ": start it with mpirun --bind-to none -n ", grid.world_size()));
  }
  ASSIGN_OR_RETURN(WorkerOptions options, MakeWorkerOptions(flags, grid, session));
  Fd weights;
  if (!flags.weight_memory.empty()) {
    ASSIGN_OR_RETURN(weights, WeightMemory::Receive(flags.weight_memory, session.rank()));
    options.stage.weight_cache = WeightMemory::PathOf(weights);
  }
  // The step loop waits for a peer that will never answer: nothing but ending the job helps.
  options.on_stuck = [](const absl::Status&) { MpiSession::AbortJob(kExitFailure); };
  ASSIGN_OR_RETURN(const auto rendezvous, MakeMpiRendezvous(session, grid));
  return RunWorker(options, *rendezvous);
}

// The ranks of this host, and this rank, are children of one daemon of mpirun's or srun's.
void TellOfKilled() {
  for (const pid_t pid : ChildrenOf(::getppid())) {
    if (const auto signal = SignalThatKilled(pid)) {
      std::printf("%s\n", FormatProcessKilled({HostName(), pid, *signal}).c_str());
    }
  }
  std::fflush(stdout);
}

int RunWorkerCommand(const WorkerCommandOptions& flags) {
  if (flags.secret_file.empty() && !flags.secret_stdin) {
    return FailUsage(kWorkerCommand, "--secret-file or --secret-stdin is required");
  }
  EndWithParent();
  TakeWriteErrors();
  if (flags.announce) {
    std::printf("%s\n", FormatRankStarted({HostName(), ::getpid()}).c_str());
    std::fflush(stdout);
  }
  const absl::Duration patience =
      absl::Seconds(std::max(flags.preflight_seconds, flags.rejoin_seconds));
  return RunMpiRank(kWorkerCommand, patience, [&](const MpiSession& session) {
    if (flags.announce) {
      std::printf("%s\n", kRankMetMark);
      std::fflush(stdout);
    }
    const absl::Status status = RunRank(flags, session);
    if (status.ok()) return status;
    if (flags.announce) TellOfKilled();
    return absl::Status(status.code(), absl::StrCat("rank ", session.rank(), " on ", HostName(),
                                                    ": ", status.message()));
  });
}

}  // namespace

void AddWorkerCommand(CLI::App& program, CommandBody& chosen) {
  WorkerCommandOptions* options = nullptr;
  CLI::App* command = AddCommand(
      program, chosen, kWorkerCommand,
      "One rank of an MPI job, placed by hand: mpirun -n N --bind-to none lockstep worker",
      &RunWorkerCommand, options);
  AddModelFlags(*command, options->model);
  AddRankFlags(*command, options->rank);
  AddWeightCacheFlag(*command, "keep packed weights for later starts in this directory, or none",
                     options->rank);
  command
      ->add_option("--host-places", options->host_places,
                   "by rank, its place among the ranks of all replicas on its host: 0/4,1/4")
      ->group("");
  command
      ->add_option("--weight-memory", options->weight_memory, "socket of a launcher's memory files")
      ->group("");
  const char* link = "Controller";
  command
      ->add_option("--controller", options->controller, "the controller's --worker-listen address")
      ->type_name("HOST:PORT")
      ->capture_default_str()
      ->group(link);
  auto* secret_file = command
                          ->add_option("--secret-file", options->secret_file,
                                       "the launch's secret, readable by its owner only")
                          ->type_name("FILE")
                          ->group(link);
  command
      ->add_flag("--secret-stdin", options->secret_stdin,
                 "instead: rank 0 reads the secret from its standard input")
      ->excludes(secret_file)
      ->group(link);
  AddRankTlsFlags(*command, "", options->tls);
  command
      ->add_option("--replica", options->replica, "which of the controller's replicas this job is")
      ->type_name("R")
      ->check(Between(0, 255))
      ->capture_default_str()
      ->group(link);
  command->add_option("--epoch", options->epoch, "of this launch; the highest counts; 0: the time")
      ->check(Unsigned64())
      ->capture_default_str()
      ->group(link);
  command
      ->add_option("--preflight-seconds", options->preflight_seconds,
                   "how long ranks that start wait for each other (at least 30, and as long as "
                   "--rejoin-seconds)")
      ->type_name("SECONDS")
      ->check(Between(1, 2e6))
      ->capture_default_str()
      ->group(link);
  command
      ->add_option("--rejoin-seconds", options->rejoin_seconds,
                   "how long to dial a controller that is lost, or refuses ranks with weights in "
                   "memory; 0: end with it")
      ->type_name("SECONDS")
      ->check(Between(0, 1e6))
      ->capture_default_str()
      ->group(link);
  command->add_flag("--announce", options->announce, "say when the process runs, and when MPI does")
      ->group("");  // for the launcher
  command
      ->add_option("--network", options->network,
                   "where NCCL's sockets connect: 10.0.0.0/24, or an interface (default: what NCCL "
                   "chooses)")
      ->type_name("NET")
      ->check([](const std::string& text) { return std::string(CheckNetwork(text).message()); }, "")
      ->group("Layout");
  command
      ->add_flag("--allow-tp-across-nodes", options->allow_tp_across_nodes,
                 "let tensor parallel groups span hosts, which is slow")
      ->group("Layout");
  AddKvCacheFlags(*command,
                  "KV cache of this rank (default: 1 at most; on a GPU what "
                  "--gpu-memory-utilization leaves)",
                  "memory of the host, for this rank", options->kv_cache);
  command->footer(
      "Example, 16 ranks on two hosts:\n"
      "  lockstep controller MODEL --tp 8 --pp 2 --worker-listen 10.0.0.1:50052 "
      "--secret-file FILE\n"
      "  mpirun -n 16 --bind-to none --hostfile HOSTS lockstep worker MODEL --tp 8 --pp 2 "
      "--controller 10.0.0.1:50052 --secret-file FILE\n"
      "Ranks choose their cores themselves; mpirun alone would give each of a few ranks one core.");
}

}  // namespace lockstep
