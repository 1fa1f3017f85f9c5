#include "launcher/serving/launch_plan.h"

#include <algorithm>
#include <map>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/text_file.h"
#include "launcher/base/host_name.h"
#include "launcher/cli/values.h"
#include "launcher/job/mpi_command.h"
#include "launcher/job/restart_policy.h"
#include "parallel/placement.h"

namespace lockstep {
namespace {

using Kind = LaunchPlan::Kind;

std::map<std::string, int> CountByHost(std::span<const std::string> host_of_rank) {
  std::map<std::string, int> count;
  for (const std::string& host : host_of_rank) ++count[host];
  return count;
}

// An error that says how to get out of it.
absl::Status WithAdvice(const absl::Status& status, absl::string_view advice) {
  return absl::Status(status.code(), absl::StrCat(status.message(), ": ", advice));
}

absl::Status CheckFlags(const LaunchFlags& flags) {
  if (!flags.network.empty()) RETURN_IF_ERROR(CheckNetwork(flags.network));
  if (!flags.worker_listen.empty()) {
    ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(flags.worker_listen));
    if (listen.host == "0.0.0.0" || listen.host == "::") {
      return absl::InvalidArgumentError(absl::StrCat("--worker-listen ", flags.worker_listen,
                                                     ": ranks dial this address, so name one of ",
                                                     "this host's"));
    }
  }
  const bool has_hosts = !flags.hosts.empty() || !flags.hostfile.empty();
  if (has_hosts && flags.launcher == "srun") {
    return absl::InvalidArgumentError(
        "--launcher srun runs on the hosts of the Slurm allocation: leave out --hosts/--hostfile");
  }
  if (!has_hosts && !flags.rsh_agent.empty()) {
    return absl::InvalidArgumentError("--rsh-agent needs --hosts or --hostfile");
  }
  return absl::OkStatus();
}

// mpirun calls its own host by the system's name, whatever the host file calls it, and then finds
// no rank for the name in the file. And a host under two names is still one.
void UnifyNamesOfThisHost(std::vector<HostSlots>& hosts) {
  const std::string own_name = SystemHostName();
  std::map<std::string, bool> is_this_host = {{own_name, true}};
  for (HostSlots& host : hosts) {
    const auto [known, is_new] = is_this_host.try_emplace(host.name, false);
    if (is_new) {
      // One that cannot be reached is another one; who needs its address says so.
      const auto towards = AddressTowards(host.name);
      known->second = towards.ok() && !towards->has_value();
    }
    if (known->second) host.name = own_name;
  }
}

absl::Status PlaceOnHosts(const LaunchFlags& flags, int num_ranks, LaunchPlan& plan) {
  ASSIGN_OR_RETURN(std::vector<HostSlots> hosts, flags.hostfile.empty()
                                                     ? ParseHostList(flags.hosts)
                                                     : ReadHostfile(flags.hostfile));
  UnifyNamesOfThisHost(hosts);
  const auto placed = PlaceRanks(hosts, num_ranks);
  if (!placed.ok()) {  // of flags alone: another start would end alike
    return WithAdvice(absl::InvalidArgumentError(placed.status().message()),
                      "write --hosts A:8,B:8, or 'A slots=8' into the host file");
  }
  plan.kind = Kind::kHosts;
  plan.host_of_rank = *placed;
  return absl::OkStatus();
}

absl::Status PlaceOnAllocation(int num_ranks, LaunchPlan& plan) {
  const auto placed = PlaceRanks(plan.slurm->hosts, num_ranks);
  if (!placed.ok()) {
    return WithAdvice(placed.status(),
                      absl::StrCat("ask Slurm for --ntasks=", num_ranks,
                                   " (or pass --launcher mpirun to use this host alone)"));
  }
  plan.kind = Kind::kSlurm;
  plan.host_of_rank = *placed;
  return absl::OkStatus();
}

absl::Status ChooseKind(const LaunchFlags& flags, int num_ranks, LaunchPlan& plan) {
  if (!flags.hosts.empty() || !flags.hostfile.empty()) return PlaceOnHosts(flags, num_ranks, plan);
  if (flags.launcher != "mpirun") {
    ASSIGN_OR_RETURN(plan.slurm, FindSlurmAllocation());
    if (plan.slurm) return PlaceOnAllocation(num_ranks, plan);
    if (flags.launcher == "srun") {
      return absl::FailedPreconditionError(
          "--launcher srun needs a Slurm allocation: run this in sbatch or salloc");
    }
  }
  plan.host_of_rank.assign(static_cast<size_t>(num_ranks), HostName());
  return absl::OkStatus();
}

absl::Status CheckPlacement(const LaunchPlan& plan, const ProcessGrid& grid) {
  std::map<std::string, int> node_of_host;
  std::vector<RankPlace> places;
  for (const std::string& host : plan.host_of_rank) {
    const int next = static_cast<int>(node_of_host.size());
    places.push_back({node_of_host.emplace(host, next).first->second, host});
  }
  for (std::span<const RankPlace> left = places; !left.empty();) {
    RETURN_IF_ERROR(CheckTpInsideNodes(grid, left.first(grid.world_size())));
    left = left.subspan(grid.world_size());
  }
  return absl::OkStatus();
}

// What ranks listened on and had connections cannot be listened on again for a minute (TIME_WAIT:
// Open MPI goes without SO_REUSEADDR), and lost jobs are started again sooner. As many as the
// default of --max-restarts, and the first.
constexpr int kJobsAMinute = RestartLimits().max_restarts + 1;

// Half of a replica's ports are for its ranks of a host, the other for its mpirun and daemons.
absl::Status CheckPorts(const LaunchPlan& plan, int num_replicas) {
  if (!plan.ports) return absl::OkStatus();
  int num_ranks = 0;
  for (int replica = 0; replica < num_replicas; ++replica) {
    for (const auto& [host, count] : CountByHost(plan.HostsOf(replica))) {
      num_ranks = std::max(num_ranks, count);
    }
  }
  const int num_ports = plan.ports->last - plan.ports->first + 1;
  const int needed = num_replicas * 2 * num_ranks * kJobsAMinute;
  if (num_ports >= needed) return absl::OkStatus();
  const std::string whose = num_replicas == 1 ? "" : absl::StrCat(num_replicas, " replicas with ");
  return absl::InvalidArgumentError(absl::StrCat("--mpi-ports has ", num_ports, " ports, ", whose,
                                                 num_ranks, " ranks on a host need ", needed,
                                                 ": those of a lost job stay taken for a minute"));
}

// Finds out which hosts are this one and by which address the others reach it.
absl::Status ChooseAddress(const LaunchFlags& flags, LaunchPlan& plan) {
  plan.worker_listen = flags.worker_listen;
  if (plan.kind == Kind::kThisHost) return absl::OkStatus();
  std::optional<std::string> address;
  plan.uses_this_host = false;
  const std::string own_name = SystemHostName();
  for (const auto& [host, num_ranks] : CountByHost(plan.host_of_rank)) {
    if (plan.kind == Kind::kHosts && host == own_name) {  // whether or not the name has an address
      plan.uses_this_host = true;
      continue;
    }
    const auto towards = AddressTowards(host);
    if (towards.ok() && !towards->has_value()) plan.uses_this_host = true;
    if (address || (towards.ok() && !towards->has_value())) continue;
    if (!plan.worker_listen.empty()) continue;  // that host may have an address there
    RETURN_IF_ERROR(towards.status());
    address = *towards;
  }
  if (!plan.worker_listen.empty() || !address) return absl::OkStatus();
  if (!flags.network.empty()) {
    ASSIGN_OR_RETURN(address, AddressInNetwork(flags.network));
  }
  plan.worker_listen = HostPort{*address, 0}.ToString();
  return absl::OkStatus();
}

absl::StatusOr<std::filesystem::path> WriteRankFile(const LaunchPlan& plan, int replica,
                                                    const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / absl::StrCat("ranks.", replica);
  RETURN_IF_ERROR(WriteTextFile(path, absl::StrJoin(plan.HostsOf(replica), "\n") + "\n"));
  return path;
}

}  // namespace

int LaunchPlan::num_hosts() const { return static_cast<int>(CountByHost(host_of_rank).size()); }

int LaunchPlan::max_ranks_per_host() const {
  int most = 0;
  for (const auto& [host, num_ranks] : CountByHost(host_of_rank)) most = std::max(most, num_ranks);
  return most;
}

std::vector<std::string> LaunchPlan::HostsOf(int replica) const {
  const auto first = host_of_rank.begin() + replica * world_size;
  return {first, first + world_size};
}

std::vector<HostPlace> LaunchPlan::PlacesOf(int replica) const {
  std::map<std::string, int> num_ranks = CountByHost(host_of_rank);
  std::map<std::string, int> num_before;
  std::vector<HostPlace> places;
  for (const std::string& host : host_of_rank) {
    places.push_back({num_before[host]++, num_ranks.at(host)});
  }
  const auto first = places.begin() + replica * world_size;
  return {first, first + world_size};
}

std::optional<PortRange> LaunchPlan::PortsOf(int replica) const {
  if (!ports) return std::nullopt;
  const int num_replicas = static_cast<int>(host_of_rank.size()) / world_size;
  const int share = (ports->last - ports->first + 1) / num_replicas;
  return PortRange{ports->first + replica * share, ports->first + (replica + 1) * share - 1};
}

absl::StatusOr<LaunchPlan> PlanLaunch(const LaunchFlags& flags, const ProcessGrid& grid,
                                      int num_replicas) {
  LaunchPlan plan;
  plan.world_size = grid.world_size();
  RETURN_IF_ERROR(CheckFlags(flags));
  plan.rsh_agent = flags.rsh_agent;
  plan.network = flags.network;
  if (!flags.mpi_ports.empty()) {
    ASSIGN_OR_RETURN(plan.ports, ParsePortRange(flags.mpi_ports));
  }
  RETURN_IF_ERROR(ChooseKind(flags, num_replicas * grid.world_size(), plan));
  RETURN_IF_ERROR(CheckPorts(plan, num_replicas));
  if (!flags.allow_tp_across_nodes) {
    const absl::Status placement = CheckPlacement(plan, grid);
    const bool by_flags = !placement.ok() && plan.kind == Kind::kHosts;
    RETURN_IF_ERROR(by_flags ? absl::InvalidArgumentError(placement.message()) : placement);
  }
  RETURN_IF_ERROR(ChooseAddress(flags, plan));
  ASSIGN_OR_RETURN(plan.starter, plan.kind == Kind::kSlurm ? FindSrun() : FindMpirun());
  return plan;
}

absl::StatusOr<JobSpec> MakeJob(const LaunchPlan& plan, const LaunchFiles& files, int replica,
                                const std::vector<std::string>& worker_arguments,
                                const std::string& secret) {
  const bool is_here = plan.kind == Kind::kThisHost;
  // Other hosts have it at the same path.
  const KeptFile& program = files.program.program();
  std::vector<std::string> worker = {(is_here ? program.Path() : program.file()).string()};
  worker.insert(worker.end(), worker_arguments.begin(), worker_arguments.end());
  const std::optional<PortRange> ports = plan.PortsOf(replica);
  JobSpec spec;
  spec.input = absl::StrCat(secret, "\n");
  if (is_here) {
    spec.command = LocalMpiCommand(plan.starter, plan.world_size,
                                   {files.directory.path(), files.memory.path()}, worker, ports);
    spec.environment = JobEnvironment(files.program.PluginVariables());
    spec.private_network = plan.worker_listen.empty();
    spec.signal_without_launcher = kMpirunEndSignal;
    return spec;
  }
  ASSIGN_OR_RETURN(const std::filesystem::path rank_file,
                   WriteRankFile(plan, replica, files.directory.path()));
  if (plan.kind == Kind::kSlurm) {
    spec.command = SrunCommand(plan.starter, *plan.slurm, plan.world_size, worker);
    spec.environment = SrunEnvironment(rank_file, plan.network, ports);
    return spec;
  }
  HostsLaunch launch;
  launch.rank_file = rank_file;
  launch.world_size = plan.world_size;
  launch.rsh_agent = plan.rsh_agent;
  launch.network = plan.network;
  launch.ports = ports;
  spec.command = HostsMpiCommand(plan.starter, launch, worker);
  spec.signal_without_launcher = kMpirunEndSignal;
  // Of mpirun's own files; other hosts have directories of their own.
  spec.environment = JobEnvironment({{"TMPDIR", files.directory.path().string()}});
  return spec;
}

}  // namespace lockstep
