#include "parallel/placement.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/check.h"

namespace lockstep {
namespace {

// "ranks 0-5 on a, ranks 6-7 on b" of one group, in order of node.
std::string WhereTheyAre(const ProcessGrid& grid, int stage, std::span<const RankPlace> places) {
  std::map<int, std::vector<int>> ranks_of_node;
  for (int tp_rank = 0; tp_rank < grid.tp(); ++tp_rank) {
    const int rank = grid.rank_of(stage, tp_rank);
    ranks_of_node[places[static_cast<size_t>(rank)].node].push_back(rank);
  }
  std::vector<std::string> parts;
  for (const auto& [node, ranks] : ranks_of_node) {
    const RankPlace& place = places[static_cast<size_t>(ranks.front())];
    parts.push_back(absl::StrCat(FormatRanks(ranks), " on ", place.host));
  }
  return absl::StrJoin(parts, ", ");
}

}  // namespace

absl::Status CheckTpInsideNodes(const ProcessGrid& grid, std::span<const RankPlace> places) {
  LS_CHECK_EQ(std::ssize(places), grid.world_size());
  for (int rank = 0; rank < grid.world_size(); ++rank) {
    const int stage = grid.stage_of(rank);
    const int first = grid.rank_of(stage, 0);
    if (places[static_cast<size_t>(rank)].node == places[static_cast<size_t>(first)].node) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "the tensor parallel group of stage ", stage, " is split between hosts (",
        WhereTheyAre(grid, stage, places),
        "), so every layer would wait for the network: give each host a multiple of --tp ",
        grid.tp(), " ranks, lower --tp and raise --pp, or pass --allow-tp-across-nodes"));
  }
  return absl::OkStatus();
}

std::string FormatRanks(std::span<const int> ranks) {
  std::vector<std::string> runs;
  for (size_t begin = 0, end = 0; begin < ranks.size(); begin = end) {
    for (end = begin + 1; end < ranks.size() && ranks[end] == ranks[end - 1] + 1;) ++end;
    runs.push_back(end - begin == 1 ? absl::StrCat(ranks[begin])
                                    : absl::StrCat(ranks[begin], "-", ranks[end - 1]));
  }
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(runs, ", "));
}

}  // namespace lockstep
