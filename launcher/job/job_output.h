// What a job of ranks prints: who wrote it, what of it people should see, and what it tells the
// launcher. Knows the words of mpirun (Open MPI 4.1) and srun.
//
// One instance per job; used by main's thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace lockstep {

// One line of the job's output.
struct JobLine {
  std::optional<int> rank;  // who wrote it; mpirun or srun itself when unset
  std::string text;
};
// Understands mpirun --tag-output's "[1,3]<stderr>:text" and srun --label's "03: text".
JobLine ParseJobLine(absl::string_view line);

// Which rank was killed and how, from mpirun's "... process rank 2 with PID 7 on node a exited on
// signal 9 (Killed)." or srun's "srun: error: a: task 2: Bus error".
struct RankKilled {
  int rank = 0;
  std::string host;
  std::string how;  // "killed by signal 9 (Killed)"
};
std::optional<RankKilled> ParseRankKilled(absl::string_view text);

// "killed by signal 9 (Killed)", from the code with which mpirun ended by itself: 128 + the signal
// that ended the first rank to go. Its words about that do not always come. Nothing for srun, whose
// code may be that of ranks it killed itself. `starter`: the program, with or without its path.
std::optional<std::string> SignalInExitCode(absl::string_view starter, int code);

// "CHECK failed: ..." of the line with which a rank says why it ends itself (kernels/base/check.h):
// a broken invariant, or a device that failed.
std::optional<std::string> ParseCheckFailure(absl::string_view text);

// What a rank says before it starts MPI, so that one that never gets through can be told from one
// that was never started.
struct RankStarted {
  std::string host;
  int64_t pid = 0;
};
std::string FormatRankStarted(const RankStarted& started);  // one line, without its end
std::optional<RankStarted> ParseRankStarted(absl::string_view text);

// What it says when it has got through: from then on MPI's start holds nobody up.
inline constexpr char kRankMetMark[] = "lockstep-rank-met";

// What a rank that ends says of others of its host: mpirun tells of the first that it sees end,
// which may be one that ended because another was killed, and srun not at all.
struct ProcessKilled {
  std::string host;
  int64_t pid = 0;
  int signal = 0;
};
std::string FormatProcessKilled(const ProcessKilled& killed);  // one line, without its end
std::optional<ProcessKilled> ParseProcessKilled(absl::string_view text);

// What a rank has found that operators may want to read, in one line. Ranks that speak for a
// pipeline stage, where there are several, say which.
struct RankNotice {
  int rank = 0;
  std::string host;
  std::optional<int> stage;
  std::string text;
};
std::string FormatNotice(const RankNotice& notice);

// Leaves out what mpirun, srun and Open MPI say at length and the launcher reports in a line.
class JobOutput {
 public:
  // What is left of a further line of the job. Banners, which stand between lines of dashes, are
  // held back until they are complete. What a rank notices that another one has noticed in the same
  // words is left out.
  std::vector<JobLine> Take(absl::string_view line);
  // The job has ended: what is left of banners that it began.
  std::vector<JobLine> Finish();

  // Why ranks could not be started, as far as the words of mpirun and its remote shell, or of srun,
  // tell.
  const std::string& start_failure() const { return start_failure_; }

 private:
  bool HasBeenNoticed(const JobLine& line);
  std::vector<JobLine> EndBanner(std::optional<int> rank, std::vector<std::string> banner);

  std::map<std::optional<int>, std::vector<std::string>> banners_;  // open ones, by writer
  std::map<std::string, int> noticed_;                              // by which rank first
  std::string last_words_;  // of the remote shell, but for warnings
  std::string start_failure_;
};

}  // namespace lockstep
