#include "launcher/serving/last_words.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "launcher/cli/values.h"
#include "launcher/job/process_state.h"

namespace lockstep {
namespace {

constexpr size_t kMostCheckBytes = 400;
constexpr absl::string_view kWorkerErrorPrefix = "lockstep worker: ";

}  // namespace

bool LastWords::Hear(const JobLine& line) {
  if (!line.rank) {
    const auto rank_killed = ParseRankKilled(line.text);
    if (rank_killed) killed = rank_killed;
    return rank_killed.has_value();
  }
  if (const auto killed_process = ParseProcessKilled(line.text)) {
    killed_processes.push_back(*killed_process);
    return true;
  }
  if (const auto failure = ParseCheckFailure(line.text)) {
    check_failures.try_emplace(*line.rank, Excerpt(*failure, kMostCheckBytes));
  }
  absl::string_view error = line.text;
  if (!absl::ConsumePrefix(&error, kWorkerErrorPrefix)) return false;
  if (rank_error.empty()) rank_error = std::string(error);
  return true;
}

std::string LastWords::StateOfLost() const {
  for (const ProcessKilled& each : killed_processes) {
    if (each.host == lost_host && each.pid == lost_pid) {
      return absl::StrCat("it was ", KilledBySignal(each.signal));
    }
  }
  return process_state;
}

// mpirun knows which rank was killed first; the controller knows what it did. When one dies the
// others are killed within a millisecond, and their streams may close first.
std::string LastWords::Explain(const std::string& reason) const {
  if (killed) {
    const auto rank = static_cast<size_t>(killed->rank);
    const std::string what =
        rank < ranks.size() ? ranks[rank] : absl::StrCat("rank ", rank, " on ", killed->host);
    const auto failure = check_failures.find(killed->rank);
    return absl::StrCat(what, ": ", killed->how, failure == check_failures.end() ? "" : ": ",
                        failure == check_failures.end() ? "" : failure->second);
  }
  if (!check_failures.empty()) {
    const auto& [rank, failure] = *check_failures.begin();
    return absl::StrCat(reason, " (rank ", rank, ": ", failure, ")");
  }
  const std::string state = StateOfLost();
  if (absl::StartsWith(state, "it was killed")) return absl::StrCat(reason, "; ", state);
  // That it lost the controller is what follows from the loss, and so is what that told it of it.
  if (!rank_error.empty() && !absl::StrContains(reason, "it failed: ") &&
      !absl::StrContains(rank_error, reason) &&
      !absl::StrContains(rank_error, "lost the controller")) {
    return absl::StrCat(reason, " (", rank_error, ")");
  }
  return state.empty() ? reason : absl::StrCat(reason, "; ", state);
}

}  // namespace lockstep
