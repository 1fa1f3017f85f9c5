#include "launcher/job/mpi_command.h"

#include <unistd.h>

#include <array>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace lockstep {

namespace fs = std::filesystem;

absl::StatusOr<fs::path> FindMpirun() {
  const char* search = std::getenv("PATH");
  const std::string path = search != nullptr ? search : "/usr/local/bin:/usr/bin:/bin";
  for (const char* name : {"mpirun.openmpi", "mpirun"}) {
    for (absl::string_view directory : absl::StrSplit(path, ':', absl::SkipEmpty())) {
      const fs::path candidate = fs::path(std::string(directory)) / name;
      if (::access(candidate.c_str(), X_OK) == 0) return candidate;
    }
  }
  return absl::NotFoundError("mpirun is not installed; on Debian: apt-get install openmpi-bin");
}

std::vector<std::string> LocalMpiCommand(const fs::path& mpirun, int world_size,
                                         const MpiScratch& scratch,
                                         const std::vector<std::string>& worker) {
  std::vector<std::string> command = {mpirun.string()};
  if (::geteuid() == 0) command.push_back("--allow-run-as-root");
  const auto add = [&](std::initializer_list<const char*> words) {
    command.insert(command.end(), words.begin(), words.end());
  };
  const auto set = [&](const char* name, const std::string& value) {
    add({"--mca", name, value.c_str()});
  };
  // Ranks pin their own threads, and there may be more ranks than cores.
  add({"--bind-to", "none", "--oversubscribe", "--tag-output"});
  set("plm", "isolated");  // no remote shell is looked for, none is needed
  set("oob_tcp_if_include", "lo");
  set("pml", "ob1");  // probing for network cards costs a fifth of a second
  set("btl", "self,vader");
  // Cross-memory attach needs a ptrace permission that containers withhold.
  set("btl_vader_single_copy_mechanism", "none");
  set("mpi_yield_when_idle", "1");
  // Ranks have nothing to do at SIGTERM that is worth mpirun's second before SIGKILL.
  set("odls_base_sigkill_timeout", "0");
  set("orte_tmpdir_base", scratch.files.string());
  set("btl_vader_backing_directory", scratch.memory.string());
  add({"-n"});
  command.push_back(absl::StrCat(world_size));
  command.insert(command.end(), worker.begin(), worker.end());
  return command;
}

std::vector<std::string> JobEnvironment() {
  constexpr std::array<const char*, 6> kLaunchPrefixes = {"OMPI_", "PMIX_",  "PMI_",
                                                          "ORTE_", "SLURM_", "PRTE_"};
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    bool is_launch = false;
    for (const char* prefix : kLaunchPrefixes) is_launch |= absl::StartsWith(*entry, prefix);
    if (!is_launch) environment.emplace_back(*entry);
  }
  return environment;
}

JobLine ParseJobLine(absl::string_view line) {
  const JobLine whole{std::nullopt, std::string(line)};
  absl::string_view rest = line;
  if (!absl::ConsumePrefix(&rest, "[")) return whole;
  const size_t comma = rest.find(',');
  const size_t bracket = rest.find(']');
  if (comma == absl::string_view::npos || bracket == absl::string_view::npos || bracket < comma) {
    return whole;
  }
  int job = 0;
  int rank = 0;
  if (!absl::SimpleAtoi(rest.substr(0, comma), &job) ||
      !absl::SimpleAtoi(rest.substr(comma + 1, bracket - comma - 1), &rank)) {
    return whole;
  }
  rest.remove_prefix(bracket + 1);
  if (!absl::ConsumePrefix(&rest, "<stderr>:") && !absl::ConsumePrefix(&rest, "<stdout>:")) {
    return whole;
  }
  return {rank, std::string(rest)};
}

std::optional<RankKilled> ParseRankKilled(absl::string_view text) {
  constexpr absl::string_view kNoticed = "noticed that process rank ";
  const size_t at = text.find(kNoticed);
  if (at == absl::string_view::npos) return std::nullopt;
  // "RANK with PID PID on node HOST exited on signal NUMBER (NAME)."
  const std::vector<std::string> words =
      absl::StrSplit(text.substr(at + kNoticed.size()), absl::MaxSplits(' ', 10));
  RankKilled killed;
  if (words.size() < 11 || words[5] != "node" || words[9] != "signal" ||
      !absl::SimpleAtoi(words[0], &killed.rank)) {
    return std::nullopt;
  }
  killed.host = words[6];
  killed.how = absl::StrCat("killed by signal ", absl::StripSuffix(words[10], "."));
  return killed;
}

bool IsMpirunNoise(absl::string_view text) {
  constexpr std::array<const char*, 13> kNoise = {"abort is already in progress",
                                                  "-----",
                                                  "MPI_ABORT was invoked",
                                                  "with errorcode",
                                                  "NOTE: invoking MPI_ABORT",
                                                  "You may or may not see output",
                                                  "exactly when Open MPI kills them",
                                                  "Primary job  terminated normally",
                                                  "a non-zero exit code",
                                                  "mpirun detected that one or more processes",
                                                  "thus causing the job to be terminated",
                                                  "  Process name:",
                                                  "  Exit code:"};
  if (absl::StripAsciiWhitespace(text).empty()) return true;
  for (const char* noise : kNoise) {
    if (absl::StrContains(text, noise)) return true;
  }
  return false;
}

}  // namespace lockstep
