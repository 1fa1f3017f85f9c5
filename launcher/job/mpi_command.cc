#include "launcher/job/mpi_command.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "launcher/base/host_name.h"

namespace lockstep {

namespace fs = std::filesystem;

std::optional<fs::path> FindProgram(std::initializer_list<const char*> names) {
  const char* search = std::getenv("PATH");
  const std::string path = search != nullptr ? search : "/usr/local/bin:/usr/bin:/bin";
  for (const char* name : names) {
    for (absl::string_view directory : absl::StrSplit(path, ':', absl::SkipEmpty())) {
      const fs::path candidate = fs::path(std::string(directory)) / name;
      if (::access(candidate.c_str(), X_OK) == 0) return candidate;
    }
  }
  return std::nullopt;
}

absl::StatusOr<fs::path> FindMpirun() {
  const auto found = FindProgram({"mpirun.openmpi", "mpirun"});
  if (!found) {
    return absl::NotFoundError("mpirun is not installed; on Debian: apt-get install openmpi-bin");
  }
  RETURN_IF_ERROR(CheckMpiHostName(SystemHostName()));
  return *found;
}

absl::Status CheckMpiHostName(absl::string_view name) {
  constexpr size_t kMostCharacters = 56;  // found by trying; 4.1.4
  const size_t length = std::min(name.find('.'), name.size());
  if (length <= kMostCharacters) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "mpirun cannot run on a host whose name has ", length, " characters, the most are ",
      kMostCharacters, ": give ", name, " a shorter one (hostname NAME)"));
}

namespace {

using Settings = std::map<std::string, std::string>;

constexpr char kSettingPrefix[] = "OMPI_MCA_";

// Wherever the ranks are.
Settings CommonSettings() {
  return {
      {"pml", "ob1"},  // probing for network cards costs a fifth of a second
      // Cross-memory attach needs a ptrace permission that containers withhold.
      {"btl_vader_single_copy_mechanism", "none"},
      {"mpi_yield_when_idle", "1"},
      // Ranks have nothing to do at SIGTERM that is worth mpirun's second before SIGKILL.
      {"odls_base_sigkill_timeout", "0"},
  };
}

// The lower half is for mpirun and its daemons, which listen on every port they are given, the
// upper for the ranks, which take one each.
void AddPorts(const std::optional<PortRange>& ports, Settings& settings) {
  if (!ports) return;
  const int middle = ports->first + (ports->last - ports->first + 1) / 2;
  settings["oob_tcp_dynamic_ipv4_ports"] = settings["oob_tcp_dynamic_ipv6_ports"] =
      absl::StrCat(ports->first, "-", middle - 1);
  settings["btl_tcp_port_min_v4"] = settings["btl_tcp_port_min_v6"] = absl::StrCat(middle);
  settings["btl_tcp_port_range_v4"] = settings["btl_tcp_port_range_v6"] =
      absl::StrCat(ports->last - middle + 1);
}

std::vector<std::string> MpirunCommand(const fs::path& mpirun, const Settings& settings,
                                       std::initializer_list<std::string> options) {
  std::vector<std::string> command = {mpirun.string()};
  if (::geteuid() == 0) command.push_back("--allow-run-as-root");
  // Ranks pin their own threads.
  command.insert(command.end(), {"--bind-to", "none", "--tag-output"});
  for (const auto& [name, value] : settings) {
    command.insert(command.end(), {"--mca", name, value});
  }
  command.insert(command.end(), options);
  return command;
}

// The connections of mpirun and its daemons ask for a sign of life after 5 s and break after three
// more silent ones: a host that is gone ends the job, and a cut-off host ends its ranks.
void AddLifelines(Settings& settings) {
  settings["oob_tcp_keepalive_time"] = "5";
  settings["oob_tcp_keepalive_intvl"] = "2";
  settings["oob_tcp_keepalive_probes"] = "3";
}

void LeaveToEnvironment(Settings& settings) {
  std::erase_if(settings, [](const auto& setting) {
    return std::getenv(absl::StrCat(kSettingPrefix, setting.first).c_str()) != nullptr;
  });
}

bool HasAnyPrefix(absl::string_view text, std::initializer_list<const char*> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const char* prefix) { return absl::StartsWith(text, prefix); });
}

// What ranks read of this environment, for mpirun takes its own settings alone to other hosts (srun
// takes all): NCCL's, and where the plugin and libraries are. Not what names something of one host,
// as CUDA_VISIBLE_DEVICES does.
void AddExports(std::vector<std::string>& command) {
  // Who lists by this setting what is exported has said it all: mpirun refuses -x beside it.
  if (std::getenv("OMPI_MCA_mca_base_env_list") != nullptr) return;
  std::set<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (HasAnyPrefix(*entry, {"NCCL_", "LOCKSTEP_CUDA_", "LD_LIBRARY_PATH="}) &&
        !HasAnyPrefix(*entry, {"NCCL_HOSTID="})) {
      names.insert(std::string(*entry, std::strcspn(*entry, "=")));
    }
  }
  for (const std::string& name : names) command.insert(command.end(), {"-x", name});
}

}  // namespace

std::vector<std::string> LocalMpiCommand(const fs::path& mpirun, int world_size,
                                         const MpiScratch& scratch,
                                         const std::vector<std::string>& worker,
                                         const std::optional<PortRange>& ports) {
  Settings settings = CommonSettings();
  settings["plm"] = "isolated";  // no remote shell is looked for, none is needed
  settings["regx"] = "naive";    // whatever this host is called
  settings["oob_tcp_if_include"] = "lo";
  settings["btl"] = "self,vader";
  settings["btl_vader_backing_directory"] = scratch.memory.string();
  settings["orte_tmpdir_base"] = scratch.files.string();
  AddPorts(ports, settings);
  // There may be more ranks than cores.
  std::vector<std::string> command =
      MpirunCommand(mpirun, settings, {"--oversubscribe", "-n", absl::StrCat(world_size)});
  command.insert(command.end(), worker.begin(), worker.end());
  return command;
}

Settings HostsMpiSettings(const std::string& network, const std::optional<PortRange>& ports) {
  Settings settings = CommonSettings();
  settings["btl"] = "self,vader,tcp";
  if (!network.empty()) settings["btl_tcp_if_include"] = network;
  AddPorts(ports, settings);
  LeaveToEnvironment(settings);
  return settings;
}

std::vector<std::string> HostsMpiCommand(const fs::path& mpirun, const HostsLaunch& launch,
                                         const std::vector<std::string>& worker) {
  Settings settings = HostsMpiSettings(launch.network, launch.ports);
  settings["plm"] = "rsh";
  settings["plm_rsh_agent"] = launch.rsh_agent.empty() ? "ssh" : launch.rsh_agent;
  // Nobody is there to type a password.
  if (launch.rsh_agent.empty()) {
    settings["plm_rsh_args"] = "-o BatchMode=yes -o ConnectTimeout=10";
  }
  if (!launch.network.empty()) settings["oob_tcp_if_include"] = launch.network;
  AddLifelines(settings);
  LeaveToEnvironment(settings);
  if (!launch.rsh_agent.empty()) settings["plm_rsh_agent"] = launch.rsh_agent;
  // Ranks go to the file's hosts one by one: mpirun's other ways to map put its own host first.
  std::vector<std::string> command =
      MpirunCommand(mpirun, settings,
                    {"--hostfile", launch.rank_file.string(), "--map-by", "seq", "-n",
                     absl::StrCat(launch.world_size)});
  AddExports(command);
  command.insert(command.end(), worker.begin(), worker.end());
  return command;
}

std::vector<std::string> JobEnvironment(const Settings& added) {
  // mpirun gives its settings to the ranks, who then would give them on; a user's own stay.
  const bool is_inside_job = std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr;
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const bool is_setting = !is_inside_job && absl::StartsWith(*entry, kSettingPrefix);
    if (is_setting ||
        !HasAnyPrefix(*entry, {"OMPI_", "PMIX_", "PMI_", "ORTE_", "SLURM_", "PRTE_"})) {
      environment.emplace_back(*entry);
    }
  }
  std::erase_if(environment, [&](const std::string& entry) {
    return added.count(entry.substr(0, entry.find('='))) > 0;
  });
  for (const auto& [name, value] : added) environment.push_back(absl::StrCat(name, "=", value));
  // Open MPI 4.1 crashes without where nobody knows the user.
  if (std::getenv("HOME") == nullptr) environment.push_back("HOME=/");
  return environment;
}

std::vector<std::string> SlurmJobEnvironment(const Settings& added) {
  std::vector<std::string> environment = JobEnvironment(added);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    // What belongs to a step, or would tell srun to place tasks otherwise, or to show each task but
    // one GPU (as --gpus-per-task implies): a step that is not told gets all of its hosts' that the
    // job has, and ranks take one each. Two that do not see each other's GPU cannot read its
    // memory. Leaving the variables out suits every srun, whichever options it knows.
    // Nor what --export told sbatch, which srun would do again: ranks get this environment.
    // Sources: srun(1), --gpus-per-task, --gres and --export;
    // https://github.com/NVIDIA/nccl-tests/issues/300.
    if (absl::StartsWith(*entry, "SLURM_") &&
        !HasAnyPrefix(
            *entry,
            {"SLURM_STEP", "SLURM_PROCID=", "SLURM_LOCALID=", "SLURM_NODEID=", "SLURM_NTASKS",
             "SLURM_NPROCS=", "SLURM_DISTRIBUTION=", "SLURM_HOSTFILE=", "SLURM_CPU_BIND",
             "SLURM_LABELIO=", "SLURM_GPUS_PER_TASK=", "SLURM_TRES_PER_TASK=", "SLURM_GPU_BIND",
             "SLURM_TRES_BIND=", "SLURM_EXPORT_ENV="})) {
      environment.emplace_back(*entry);
    }
  }
  return environment;
}

}  // namespace lockstep
