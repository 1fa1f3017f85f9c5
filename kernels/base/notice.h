// How what operators may want to read gets to them.
#pragma once

#include <functional>
#include <string>

namespace lockstep {

using Notice = std::function<void(const std::string&)>;

}  // namespace lockstep
