#include "launcher/job/slurm.h"

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "launcher/job/mpi_command.h"

namespace lockstep {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

absl::Status InStep(const std::string& which) {
  return absl::FailedPreconditionError(
      absl::StrCat("this is ", which,
                   ": run lockstep serve without srun in the batch script or salloc's shell"));
}

}  // namespace

absl::StatusOr<std::optional<SlurmAllocation>> FindSlurmAllocation() {
  SlurmAllocation allocation{.job_id = Variable("SLURM_JOB_ID"), .hosts = {}};
  const std::string nodes = Variable("SLURM_JOB_NODELIST");
  if (allocation.job_id.empty() || nodes.empty()) return std::optional<SlurmAllocation>();
  int num_tasks = 1;
  if (absl::SimpleAtoi(Variable("SLURM_STEP_NUM_TASKS"), &num_tasks) && num_tasks > 1) {
    return InStep(absl::StrCat("one of ", num_tasks,
                               " tasks of a Slurm step, and each would start a server"));
  }
  // In a step of one task the step's number of tasks stands beside the allocation's nodes; salloc's
  // shell, which is such a step, has the allocation's.
  const std::string step_nodes = Variable("SLURM_STEP_NUM_NODES");
  const std::string step_tasks = Variable("SLURM_STEP_TASKS_PER_NODE");
  if (!step_nodes.empty() && step_nodes != Variable("SLURM_JOB_NUM_NODES") &&
      step_tasks == Variable("SLURM_TASKS_PER_NODE")) {
    return InStep(absl::StrCat("a Slurm step of ", step_nodes, " of the allocation's ",
                               Variable("SLURM_JOB_NUM_NODES"), " nodes"));
  }
  absl::StatusOr<std::vector<HostSlots>> hosts =
      ParseSlurmHosts(nodes, Variable("SLURM_TASKS_PER_NODE"));
  if (!hosts.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the Slurm allocation ", allocation.job_id, ": ", hosts.status().message()));
  }
  allocation.hosts = *std::move(hosts);
  if (!absl::SimpleAtoi(Variable("SLURM_CPUS_PER_TASK"), &allocation.cpus_per_task)) {
    allocation.cpus_per_task = 0;
  }
  return allocation;
}

absl::StatusOr<std::filesystem::path> FindSrun() {
  if (const auto found = FindProgram({"srun"})) return *found;
  return absl::NotFoundError("srun is not on $PATH, though this is a Slurm allocation");
}

std::vector<std::string> SrunCommand(const std::filesystem::path& srun,
                                     const SlurmAllocation& allocation, int world_size,
                                     const std::vector<std::string>& worker) {
  std::vector<std::string> command = {srun.string(), "--mpi=pmix", "--job-name=lockstep"};
  command.push_back(absl::StrCat("--ntasks=", world_size));
  command.push_back("--distribution=arbitrary");  // SLURM_HOSTFILE
  // Since 22.05 srun does not take it over from sbatch.
  if (allocation.cpus_per_task > 0) {
    command.push_back(absl::StrCat("--cpus-per-task=", allocation.cpus_per_task));
  }
  for (const char* option : {"--overlap",        // with the steps of other replicas
                             "--cpu-bind=none",  // ranks pin their own threads
                             "--input=0", "--label", "--unbuffered", "--kill-on-bad-exit=1"}) {
    command.push_back(option);
  }
  command.insert(command.end(), worker.begin(), worker.end());
  return command;
}

std::vector<std::string> SrunEnvironment(const std::filesystem::path& rank_file,
                                         const std::string& network,
                                         const std::optional<PortRange>& ports) {
  std::map<std::string, std::string> added = {{"SLURM_HOSTFILE", rank_file.string()}};
  for (const auto& [name, value] : HostsMpiSettings(network, ports)) {
    added[absl::StrCat("OMPI_MCA_", name)] = value;
  }
  return SlurmJobEnvironment(added);
}

}  // namespace lockstep
