#include "launcher/cli/launch_flags.h"

#include "absl/strings/str_cat.h"
#include "launcher/cli/add_command.h"

namespace lockstep {

void AddLaunchFlags(CLI::App& command, LaunchFlags& flags) {
  const char* group = "Hosts";
  auto* hosts = command
                    .add_option("--hosts", flags.hosts,
                                "hosts and the ranks each takes, in the order of ranks")
                    ->type_name("A:8,B:8")
                    ->group(group);
  command.add_option("--hostfile", flags.hostfile, "the same in a file, lines of 'host slots=8'")
      ->type_name("FILE")
      ->excludes(hosts)
      ->group(group);
  command
      .add_option("--launcher", flags.launcher,
                  "auto: srun in a Slurm allocation unless hosts are given, else mpirun")
      ->type_name("NAME")
      ->check(CLI::IsMember({"auto", "mpirun", "srun"}).description(""))
      ->capture_default_str()
      ->group(group);
  command.add_option("--rsh-agent", flags.rsh_agent, "runs commands on hosts (default: ssh)")
      ->type_name("PATH")
      ->group(group);
  command
      .add_option("--network", flags.network,
                  "the ranks' network, for MPI and NCCL's sockets: 10.0.0.0/24, or an interface "
                  "(default: any)")
      ->type_name("NET")
      ->group(group);
  command.add_option("--mpi-ports", flags.mpi_ports, "where MPI may listen (default: any port)")
      ->type_name("FIRST-LAST")
      ->group(group);
  command
      .add_option("--worker-listen", flags.worker_listen,
                  "where ranks connect (default: a Unix socket on one host, else any port of "
                  "this host's address in the ranks' network)")
      ->type_name("HOST:PORT")
      ->check(HostAndPort())
      ->group(group);
  command
      .add_flag("--allow-tp-across-nodes", flags.allow_tp_across_nodes,
                "let tensor parallel groups span hosts, which is slow")
      ->group(group);
  command
      .add_option("--preflight-seconds", flags.preflight_seconds,
                  absl::StrCat("how long ranks may take to start, to join and to check their links "
                               "(default: ",
                               kPreflightSeconds, "; ", kGpuPreflightSeconds,
                               " if they have GPUs or may have, on other hosts)"))
      ->type_name("SECONDS")
      ->check(Between(1, 1e6))
      ->group(group);
}

}  // namespace lockstep
