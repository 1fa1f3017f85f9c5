#include "deploy/plan/stage_borders.h"

#include <algorithm>
#include <vector>

#include "parallel/hand_over.h"

namespace lockstep::plan {

std::vector<int64_t> MostWholeBytesOfBorders(const Layout& layout, int gpus_per_node) {
  const ProcessGrid grid = *ProcessGrid::Create(layout.tp, layout.pp);
  std::vector<int> nodes;
  for (int rank = 0; rank < layout.ranks(); ++rank) nodes.push_back(rank / gpus_per_node);
  std::vector<int64_t> borders;
  for (int stage = 0; stage + 1 < layout.pp; ++stage) {
    borders.push_back(std::min(MostWholeBytes(grid, nodes, stage), kMostWholeBytesBetweenDevices));
  }
  return borders;
}

double HandOverSeconds(const Interconnect& net, int tp, int64_t most_whole_bytes, double bytes) {
  const bool across_nodes = most_whole_bytes == 0;
  if (tp == 1 || bytes <= static_cast<double>(most_whole_bytes)) {
    return TransferSeconds(net, across_nodes, bytes);
  }
  const double slice = bytes / tp;
  return TransferSeconds(net, across_nodes, slice) +
         TransferSeconds(net, tp > net.gpus_per_node, bytes - slice);
}

int64_t HandOverMemoryBytes(const Layout& layout, int gpus_per_node, int stage,
                            int64_t hidden_states) {
  const std::vector<int64_t> borders = MostWholeBytesOfBorders(layout, gpus_per_node);
  int64_t bytes = 0;
  for (const int border : {stage - 1, stage}) {
    if (border < 0 || border + 1 >= layout.pp) continue;
    bytes += LongestMessageBytes(hidden_states, layout.tp, borders[static_cast<size_t>(border)]);
  }
  return bytes;
}

}  // namespace lockstep::plan
