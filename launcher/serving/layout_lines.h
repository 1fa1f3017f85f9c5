// Which ranks a launch has and what they hold, as people read it. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/serving/capacity.h"

namespace lockstep {

struct ShownLayout {
  int tp = 1;
  int pp = 1;
  int num_replicas = 1;
  std::optional<int> threads_per_rank;  // nothing where ranks find out themselves
};
// The whole, then each stage with its layers, ranks and the largest rank's weights.
std::vector<std::string> LayoutLines(const ShownLayout& layout, const PlannedCapacity& capacity);

}  // namespace lockstep
