// Ranks as threads: runs one function per rank of a grid over in-process groups.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "parallel/communicator.h"
#include "parallel/process_grid.h"

namespace lockstep::testing {

// A rank whose function fails (a test failure or an error) aborts the others instead of leaving
// them waiting.
inline void RunRanks(int tp, int pp,
                     const std::function<absl::Status(int rank, RankGroups& groups)>& rank_main) {
  const ProcessGrid grid = *ProcessGrid::Create(tp, pp);
  std::vector<RankGroups> ranks = MakeInProcessGroups(grid);
  std::vector<absl::Status> results(ranks.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      results[rank] = rank_main(static_cast<int>(rank), ranks[rank]);
      if (!results[rank].ok()) ranks[rank].tp->Abort();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_TRUE(results[rank].ok()) << "rank " << rank << ": " << results[rank];
  }
}

}  // namespace lockstep::testing
