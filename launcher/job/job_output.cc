#include "launcher/job/job_output.h"

#include <signal.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "launcher/job/process_state.h"

namespace lockstep {
namespace {

// "[1,3]<stderr>:" at the front of text, which it consumes.
std::optional<int> ConsumeMpirunTag(absl::string_view& text) {
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, "[")) return std::nullopt;
  const size_t comma = rest.find(',');
  const size_t bracket = rest.find(']');
  if (comma == absl::string_view::npos || bracket == absl::string_view::npos || bracket < comma) {
    return std::nullopt;
  }
  int job = 0;
  int rank = 0;
  if (!absl::SimpleAtoi(rest.substr(0, comma), &job) ||
      !absl::SimpleAtoi(rest.substr(comma + 1, bracket - comma - 1), &rank)) {
    return std::nullopt;
  }
  rest.remove_prefix(bracket + 1);
  if (!absl::ConsumePrefix(&rest, "<stderr>:") && !absl::ConsumePrefix(&rest, "<stdout>:")) {
    return std::nullopt;
  }
  text = rest;
  return rank;
}

// "03: ", as wide as the largest rank.
std::optional<int> ConsumeSrunLabel(absl::string_view& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  int rank = 0;
  if (digits == 0 || digits > 5 || !absl::SimpleAtoi(text.substr(0, digits), &rank)) {
    return std::nullopt;
  }
  absl::string_view rest = text.substr(digits);
  if (!absl::ConsumePrefix(&rest, ":")) return std::nullopt;
  if (!rest.empty() && !absl::ConsumePrefix(&rest, " ")) return std::nullopt;
  text = rest;
  return rank;
}

}  // namespace

JobLine ParseJobLine(absl::string_view line) {
  std::optional<int> rank = ConsumeMpirunTag(line);
  if (!rank) rank = ConsumeSrunLabel(line);
  return {rank, std::string(line)};
}

namespace {

// "RANK with PID PID on node HOST exited on signal NUMBER (NAME)."
std::optional<RankKilled> ParseMpirunKilled(absl::string_view text) {
  constexpr absl::string_view kNoticed = "noticed that process rank ";
  const size_t at = text.find(kNoticed);
  if (at == absl::string_view::npos) return std::nullopt;
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

// "srun: error: HOST: task RANK: NAME", NAME as strsignal(3) has it. Killed and terminated are also
// those that Slurm ends after the first, and it does not say which was that.
std::optional<RankKilled> ParseSrunKilled(absl::string_view text) {
  if (!absl::ConsumePrefix(&text, "srun: error: ")) return std::nullopt;
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ": ");
  RankKilled killed;
  if (parts.size() != 3) return std::nullopt;
  absl::string_view task = parts[1];
  if (!absl::ConsumePrefix(&task, "task ") || !absl::SimpleAtoi(task, &killed.rank)) {
    return std::nullopt;
  }
  const absl::string_view name = absl::StripSuffix(parts[2], " (core dumped)");
  for (const int signal : {SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE}) {
    if (name != ::strsignal(signal)) continue;
    killed.host = std::string(parts[0]);
    killed.how = KilledBySignal(signal);
    return killed;
  }
  return std::nullopt;
}

}  // namespace

std::optional<RankKilled> ParseRankKilled(absl::string_view text) {
  const auto killed = ParseMpirunKilled(text);
  return killed ? killed : ParseSrunKilled(text);
}

std::optional<std::string> SignalInExitCode(absl::string_view starter, int code) {
  const absl::string_view program =
      starter.substr(starter.rfind('/') + 1);  // 0 where there is none
  const int signal = code - 128;
  if (!absl::StartsWith(program, "mpirun") || signal < 1 || signal > SIGSYS) return std::nullopt;
  return KilledBySignal(signal);
}

namespace {

constexpr absl::string_view kStartedMark = "lockstep-rank-started ";
constexpr absl::string_view kKilledMark = "lockstep-killed ";
constexpr size_t kMaxBannerLines = 100;
constexpr size_t kMaxNotices = 1000;  // that are kept to compare with

bool ContainsAny(absl::string_view text, std::initializer_list<const char*> parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](const char* part) { return absl::StrContains(text, part); });
}

bool IsRule(absl::string_view text) {
  return text.size() >= 20 && text.find_first_not_of('-') == absl::string_view::npos;
}

// Single lines that repeat what is told otherwise, or mean nothing to people.
bool IsNoise(absl::string_view text) {
  if (absl::StartsWith(text, "srun: error: ") &&
      ContainsAny(text, {": Exited with exit code", ": Killed", ": Terminated"})) {
    return true;
  }
  return absl::StripAsciiWhitespace(text).empty() ||
         ContainsAny(text, {"sent help message help-", "orte_base_help_aggregate",
                            "abort is already in progress",
                            // a remote shell that was quicker than mpirun, and runs all the same:
                            // Open MPI 4.1, orte/mca/plm/rsh/plm_rsh_module.c
                            "failed in parent with errno",
                            // mpirun's, when it is told to end while it begins
                            "ORTE_ERROR_LOG: Data unpack would", "[warn] Epoll MOD",
                            // Slurm's, when a step ends
                            "srun: Job step aborted", "srun: launch/slurm: _step_signal",
                            "srun: cluster configuration lacks support for cpu binding",
                            "error: *** STEP ", "srun: Force Terminated", "srun: Terminating"});
}

// What follows from a rank's end, or from our removing files that ranks have opened.
bool IsKnownBanner(absl::string_view text) {
  return ContainsAny(text, {"MPI_ABORT was invoked on rank", "Primary job  terminated normally",
                            "processes exited with non-zero status", "System call: unlink(2)",
                            "ORTE does not know how to route a message"});
}

// That a remote shell or mpirun goes on, so that it is no reason to stop.
bool IsWarning(absl::string_view text) {
  return ContainsAny(text, {"warning: ", "Warning: ", "WARNING: "});
}

// Of a banner of mpirun's.
bool TellsOfStartFailure(absl::string_view text) {
  return ContainsAny(text, {"ORTE was unable to reliably start one or more daemons",
                            "unable to complete a TCP connection", "ORTE has lost communication"});
}

// Of a line of srun's, in the words of older and of newer Slurms.
bool TellsOfMissingPmix(absl::string_view text) {
  return absl::StartsWith(text, "srun: error: ") &&
         ContainsAny(text, {"Invalid MPI type", "invalid MPI type"});
}

}  // namespace

std::optional<std::string> ParseCheckFailure(absl::string_view text) {
  constexpr absl::string_view kBefore = ": ";
  const size_t at = text.find(": CHECK failed: ");
  if (at == absl::string_view::npos) return std::nullopt;
  return std::string(text.substr(at + kBefore.size()));
}

std::string FormatRankStarted(const RankStarted& started) {
  return absl::StrCat(kStartedMark, started.host, " ", started.pid);
}

std::optional<RankStarted> ParseRankStarted(absl::string_view text) {
  if (!absl::ConsumePrefix(&text, kStartedMark)) return std::nullopt;
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  RankStarted started;
  if (words.size() != 2 || words[0].empty() || !absl::SimpleAtoi(words[1], &started.pid)) {
    return std::nullopt;
  }
  started.host = std::string(words[0]);
  return started;
}

std::string FormatProcessKilled(const ProcessKilled& killed) {
  return absl::StrCat(kKilledMark, killed.host, " ", killed.pid, " ", killed.signal);
}

std::optional<ProcessKilled> ParseProcessKilled(absl::string_view text) {
  if (!absl::ConsumePrefix(&text, kKilledMark)) return std::nullopt;
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  ProcessKilled killed;
  if (words.size() != 3 || words[0].empty() || !absl::SimpleAtoi(words[1], &killed.pid) ||
      !absl::SimpleAtoi(words[2], &killed.signal) || killed.signal < 1 || killed.signal >= NSIG) {
    return std::nullopt;
  }
  killed.host = std::string(words[0]);
  return killed;
}

std::string FormatNotice(const RankNotice& notice) {
  return absl::StrCat("rank ", notice.rank, " on ", notice.host,
                      notice.stage ? absl::StrCat(", stage ", *notice.stage) : "", ": ",
                      notice.text);
}

bool JobOutput::HasBeenNoticed(const JobLine& line) {
  const size_t end_of_name = line.text.find(": ");
  if (!line.rank || end_of_name == std::string::npos ||
      !absl::StartsWith(line.text, absl::StrCat("rank ", *line.rank, " on ")) ||
      noticed_.size() >= kMaxNotices) {
    return false;
  }
  const auto noticed = noticed_.emplace(line.text.substr(end_of_name + 2), *line.rank).first;
  return noticed->second != *line.rank;
}

std::vector<JobLine> JobOutput::Take(absl::string_view line) {
  JobLine parsed = ParseJobLine(line);
  const auto banner = banners_.find(parsed.rank);
  if (banner == banners_.end()) {
    if (IsRule(parsed.text)) {
      banners_[parsed.rank];
      return {};
    }
    if (IsNoise(parsed.text) || HasBeenNoticed(parsed)) return {};
    if (!parsed.rank && !IsWarning(parsed.text)) last_words_ = parsed.text;
    if (!parsed.rank && TellsOfMissingPmix(parsed.text)) {
      start_failure_ =
          "srun cannot start ranks: this Slurm has no PMIx; give --hosts A:8,B:8 instead, over ssh";
    }
    return {std::move(parsed)};
  }
  if (!IsRule(parsed.text)) banner->second.push_back(std::move(parsed.text));
  if (!IsRule(parsed.text) && banner->second.size() < kMaxBannerLines) return {};
  std::vector<std::string> lines = std::move(banner->second);
  banners_.erase(banner);
  return EndBanner(parsed.rank, std::move(lines));
}

std::vector<JobLine> JobOutput::Finish() {
  std::vector<JobLine> shown;
  for (auto& [rank, banner] : std::exchange(banners_, {})) {
    std::ranges::move(EndBanner(rank, std::move(banner)), std::back_inserter(shown));
  }
  return shown;
}

std::vector<JobLine> JobOutput::EndBanner(std::optional<int> rank,
                                          std::vector<std::string> banner) {
  const std::string text = absl::StrJoin(banner, "\n");
  if (!rank && TellsOfStartFailure(text)) {
    if (start_failure_.empty()) {
      start_failure_ = absl::StrCat("mpirun could not start ranks on all hosts: ",
                                    last_words_.empty()
                                        ? "its daemons cannot connect to each other: see --network"
                                        : last_words_);
    }
    return {};
  }
  if (IsKnownBanner(text)) return {};
  std::vector<JobLine> shown;
  for (std::string& line : banner) {
    if (!IsNoise(line)) shown.push_back({rank, std::move(line)});
  }
  return shown;
}

}  // namespace lockstep
