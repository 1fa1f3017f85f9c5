#include "tests/e2e/rank_killer.h"

#include <signal.h>

#include <cstdio>

#include "absl/time/clock.h"

namespace lockstep::testing {

RankKiller::RankKiller(const Connection& server, absl::Duration every, uint64_t seed)
    : server_(server), every_(every), next_(absl::Now() + every / 2), random_(seed) {}

void RankKiller::Tick() {
  if (absl::Now() < next_) return;
  next_ = absl::Now() + every_;
  const auto status = server_.GetStatus(absl::Seconds(5));
  if (!status.ok() || status->ranks_size() == 0) return;
  const v1::RankStatus& rank = status->ranks(static_cast<int>(random_() % status->ranks_size()));
  if (rank.pid() <= 0) return;  // not joined
  const int signal = num_kills_++ % 2 == 0 ? SIGKILL : SIGSTOP;
  std::printf("%s rank %d\n", signal == SIGKILL ? "killing" : "stopping", rank.rank());
  std::fflush(stdout);
  ::kill(static_cast<pid_t>(rank.pid()), signal);
}

}  // namespace lockstep::testing
