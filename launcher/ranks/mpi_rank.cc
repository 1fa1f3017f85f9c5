#include "launcher/ranks/mpi_rank.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "launcher/base/host_name.h"
#include "launcher/cli/command.h"
#include "launcher/job/runtime_dir.h"
#include "parallel/host_cores.h"

namespace lockstep {
namespace {

// Open MPI leaves the memory it shares behind in /dev/shm when a rank is killed. So every rank has
// a directory of its own for it, unless the launcher named one, and removes that at once: ranks of
// a host have opened each other's memory when Start has returned on all of them.
absl::StatusOr<MpiSession> StartMpi() {
  constexpr char kSetting[] = "OMPI_MCA_btl_vader_backing_directory";
  if (std::getenv(kSetting) != nullptr) return MpiSession::Start(nullptr, nullptr);
  ASSIGN_OR_RETURN(const RuntimeDir dir, RuntimeDir::CreateInMemory());
  ::setenv(kSetting, dir.path().c_str(), /*overwrite=*/0);
  return MpiSession::Start(nullptr, nullptr);
}

}  // namespace

int RunMpiRank(const char* command, const std::function<absl::Status(const MpiSession&)>& body) {
  const auto session = StartMpi();
  if (!session.ok()) return Fail(command, session.status());
  const absl::Status status = body(*session);
  if (status.ok()) return kExitOk;
  Fail(command, status);
  std::fflush(nullptr);
  MpiSession::AbortJob(kExitFailure);
}

absl::StatusOr<std::string> SecretOfStdin(const MpiSession& session) {
  std::string line;
  if (session.rank() == 0) line = ReadLine(STDIN_FILENO);
  ASSIGN_OR_RETURN(std::string secret, session.Broadcast(std::move(line)));
  if (secret.empty()) {
    return absl::InvalidArgumentError("--secret-stdin: rank 0 read no secret on standard input");
  }
  return secret;
}

int KeepToOwnCores(const MpiSession& session, int place, std::span<const int> gpu_nodes) {
  if (!session.shares_cores()) return 0;
  const std::vector<int> mine = CoresOfRank(FindHostCores(), place, gpu_nodes);
  if (mine.empty()) return 0;
  const absl::Status status = StayOn(mine);
  if (status.ok()) return static_cast<int>(mine.size());
  std::fprintf(stderr, "rank %d on %s: threads run on any core: %s\n", session.rank(),
               HostName().c_str(), std::string(status.message()).c_str());
  return 0;
}

}  // namespace lockstep
