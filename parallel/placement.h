// Which node each rank runs on, and whether that suits the grid. Pure.
//
// A tensor parallel group all-reduces twice per layer, so it belongs inside a node; stages hand
// over one message per step and may lie anywhere.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "parallel/process_grid.h"

namespace lockstep {

struct RankPlace {
  int node = 0;      // ranks with the same number share memory
  std::string host;  // as shown to operators
};

// places: by rank, grid.world_size() of them. FAILED_PRECONDITION naming the first group that lies
// on several nodes, its ranks and their hosts, and what to do about it.
absl::Status CheckTpInsideNodes(const ProcessGrid& grid, std::span<const RankPlace> places);

// Of ascending ranks: "rank 3", "ranks 0-3, 8".
std::string FormatRanks(std::span<const int> ranks);

}  // namespace lockstep
