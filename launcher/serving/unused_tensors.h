// What is said of tensors that a checkpoint holds and the model does not use.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// '12 tensors of the checkpoint are not used: "a", "b", "c" and 9 more (...)'. At least one.
std::string UnusedTensorsText(const std::vector<std::string>& names);

}  // namespace lockstep
