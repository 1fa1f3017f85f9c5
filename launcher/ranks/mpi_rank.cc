#include "launcher/ranks/mpi_rank.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "launcher/base/host_name.h"
#include "launcher/cli/command.h"
#include "launcher/job/runtime_dir.h"
#include "parallel/host_cores.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Open MPI leaves the memory it shares behind in /dev/shm when a rank is killed. So every rank has
// a directory of its own for it, unless the launcher named one, and removes that at once: ranks of
// a host have opened each other's memory when Start has returned on all of them. As Open MPI
// complains at its end of files that it does not find, there are such until then.
class MpiMemory {
 public:
  MpiMemory() = default;
  MpiMemory(const MpiMemory&) = delete;
  MpiMemory& operator=(const MpiMemory&) = delete;
  ~MpiMemory() {  // after the session
    std::error_code ignored;
    if (!directory_.empty()) fs::remove_all(directory_, ignored);
  }

  absl::StatusOr<MpiSession> Start() {
    constexpr char kSetting[] = "OMPI_MCA_btl_vader_backing_directory";
    if (std::getenv(kSetting) != nullptr) return MpiSession::Start(nullptr, nullptr);
    ASSIGN_OR_RETURN(const RuntimeDir dir, RuntimeDir::CreateInMemory());
    ::setenv(kSetting, dir.path().c_str(), /*overwrite=*/0);
    auto session = MpiSession::Start(nullptr, nullptr);
    std::error_code ignored;
    for (const fs::directory_entry& file : fs::directory_iterator(dir.path(), ignored)) {
      files_.push_back(file.path());
    }
    if (!files_.empty()) directory_ = dir.path();
    return session;
  }
  // The session is about to end, in order.
  void BeforeEnd() const {
    if (directory_.empty() || ::mkdir(directory_.c_str(), 0700) != 0) return;
    for (const fs::path& file : files_) const std::ofstream made(file);
  }

 private:
  fs::path directory_;
  std::vector<fs::path> files_;
};

}  // namespace

int RunMpiRank(const char* command, absl::Duration patience,
               const std::function<absl::Status(const MpiSession&)>& body) {
  MpiMemory memory;
  auto session = memory.Start();
  if (!session.ok()) return Fail(command, session.status());
  session->WaitAtMost(patience);
  const absl::Status status = body(*session);
  if (status.ok()) {
    memory.BeforeEnd();
    return kExitOk;
  }
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
