// Kills or stops a random rank of a server now and then. For one thread.
#pragma once

#include <cstdint>
#include <random>

#include "absl/time/time.h"
#include "launcher/client/connection.h"

namespace lockstep::testing {

class RankKiller {
 public:
  RankKiller(const Connection& server, absl::Duration every, uint64_t seed);

  // Does it if it is time to.
  void Tick();

 private:
  const Connection& server_;
  const absl::Duration every_;
  absl::Time next_;
  std::mt19937_64 random_;
  int num_kills_ = 0;
};

}  // namespace lockstep::testing
