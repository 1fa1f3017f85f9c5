#include "tests/parallel/local_ranks.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "kernels/base/check.h"
#include "tests/parallel/socket_communicator.h"

namespace lockstep::testing {
namespace {

constexpr char kVariable[] = "LOCKSTEP_LOCAL_RANK";  // part;argument;rank;socket,socket,...

// sockets[a][b]: what rank a uses for rank b.
std::vector<std::vector<int>> ConnectAll(int num_ranks) {
  const auto count = static_cast<size_t>(num_ranks);
  std::vector<std::vector<int>> sockets(count, std::vector<int>(count, -1));
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = a + 1; b < count; ++b) {
      int ends[2];
      LS_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
      sockets[a][b] = ends[0];
      sockets[b][a] = ends[1];
    }
  }
  return sockets;
}

[[noreturn]] void BecomeRank(pid_t parent, const std::vector<int>& sockets,
                             const std::string& description) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  for (const int socket : sockets) {
    if (socket >= 0) fcntl(socket, F_SETFD, 0);
  }
  setenv(kVariable, description.c_str(), 1);
  char name[] = "local_rank";
  char* arguments[] = {name, nullptr};
  execv("/proc/self/exe", arguments);
  _exit(127);
}

int StatusOf(int waited) {
  return WIFSIGNALED(waited) ? 128 + WTERMSIG(waited) : WEXITSTATUS(waited);
}

std::vector<int> AwaitAll(std::vector<pid_t> ranks, std::chrono::seconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::vector<int> statuses(ranks.size(), -1);
  while (std::find(statuses.begin(), statuses.end(), -1) != statuses.end()) {
    const bool is_late = std::chrono::steady_clock::now() > deadline;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      if (statuses[rank] >= 0) continue;
      if (is_late) kill(ranks[rank], SIGKILL);
      int waited = 0;
      if (waitpid(ranks[rank], &waited, is_late ? 0 : WNOHANG) == ranks[rank]) {
        statuses[rank] = StatusOf(waited);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return statuses;
}

LocalRank Parse(const std::vector<std::string>& fields) {
  LocalRank rank;
  rank.argument = fields[1];
  LS_CHECK(absl::SimpleAtoi(fields[2], &rank.rank));
  for (const auto text : absl::StrSplit(fields[3], ',')) {
    rank.sockets.push_back(-1);
    LS_CHECK(absl::SimpleAtoi(text, &rank.sockets.back()));
  }
  rank.size = static_cast<int>(rank.sockets.size());
  return rank;
}

}  // namespace

RankGroups LocalRank::Groups(const ProcessGrid& grid) const {
  LS_CHECK_EQ(grid.world_size(), size);
  const int stage = grid.stage_of(rank);
  const int tp_rank = grid.tp_rank_of(rank);
  std::vector<int> tp;
  std::vector<int> pp;
  for (int peer = 0; peer < grid.tp(); ++peer) {
    tp.push_back(sockets[static_cast<size_t>(grid.rank_of(stage, peer))]);
  }
  for (int peer = 0; peer < grid.pp(); ++peer) {
    pp.push_back(sockets[static_cast<size_t>(grid.rank_of(peer, tp_rank))]);
  }
  return {MakeSocketCommunicator(tp_rank, std::move(tp)),
          MakeSocketCommunicator(stage, std::move(pp))};
}

std::optional<int> RunIfLocalRank(const std::map<std::string, LocalRankMain>& parts) {
  const char* description = std::getenv(kVariable);
  if (description == nullptr) return std::nullopt;
  const std::vector<std::string> fields = absl::StrSplit(description, ';');
  LS_CHECK(fields.size() == 4) << description;
  const auto part = parts.find(fields[0]);
  LS_CHECK(part != parts.end()) << "no part " << fields[0];
  const LocalRank rank = Parse(fields);
  const absl::Status status = part->second(rank);
  if (!status.ok()) std::cerr << "rank " << rank.rank << ": " << status << std::endl;
  const bool failed = ::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed();
  return status.ok() && !failed ? 0 : 1;
}

std::chrono::seconds RanksTimeout() {
  const char* given = std::getenv("LOCKSTEP_RANKS_TIMEOUT_S");
  int64_t seconds = 300;
  LS_CHECK(given == nullptr || (absl::SimpleAtoi(given, &seconds) && seconds > 0))
      << "LOCKSTEP_RANKS_TIMEOUT_S=" << given;
  return std::chrono::seconds(seconds);
}

std::vector<int> RunLocalRanks(const LocalJob& job) {
  const std::vector<std::vector<int>> sockets = ConnectAll(job.num_ranks);
  std::fflush(nullptr);
  const pid_t parent = getpid();
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < job.num_ranks; ++rank) {
    const std::vector<int>& mine = sockets[static_cast<size_t>(rank)];
    const std::string description =
        absl::StrCat(job.part, ";", job.argument, ";", rank, ";", absl::StrJoin(mine, ","));
    ranks.push_back(fork());
    LS_CHECK(ranks.back() >= 0);
    if (ranks.back() == 0) BecomeRank(parent, mine, description);
  }
  for (const std::vector<int>& mine : sockets) {
    for (const int socket : mine) {
      if (socket >= 0) close(socket);
    }
  }
  return AwaitAll(ranks, job.timeout);
}

}  // namespace lockstep::testing
