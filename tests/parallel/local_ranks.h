// Ranks as processes of this machine, without MPI: a program that runs itself once for each rank,
// with a socket between every two.
//
//   int main(int argc, char** argv) {
//     if (const auto status = RunIfLocalRank({{"sums", &Sums}})) return *status;
//     ...  RunLocalRanks({.num_ranks = 2, .part = "sums"})
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "parallel/communicator.h"
#include "parallel/process_grid.h"

namespace lockstep::testing {

struct LocalRank {
  int rank = 0;
  int size = 1;
  std::string argument;      // as LocalJob's
  std::vector<int> sockets;  // by peer

  // Over the sockets; grid.world_size() == size. The two groups may be used at once, but no other
  // pair made here beside them.
  RankGroups Groups(const ProcessGrid& grid) const;
};

using LocalRankMain = std::function<absl::Status(const LocalRank& rank)>;

// Asked by main before all else. A process that is a rank plays its part and gets its exit status:
// 0 when the part returned OK and no expectation of GoogleTest failed.
std::optional<int> RunIfLocalRank(const std::map<std::string, LocalRankMain>& parts);

// $LOCKSTEP_RANKS_TIMEOUT_S, else 300 seconds: what a job's ranks may take. Groups that wait for
// their ranks wait less long, so that they can say so.
std::chrono::seconds RanksTimeout();

struct LocalJob {
  int num_ranks = 1;
  std::string part;
  std::string argument = {};
  std::chrono::seconds timeout = RanksTimeout();  // after which ranks are killed
};
// Until all ranks have ended. By rank: the exit status, or 128 and the signal that ended it. Ranks
// end with the process that called this.
std::vector<int> RunLocalRanks(const LocalJob& job);

}  // namespace lockstep::testing
