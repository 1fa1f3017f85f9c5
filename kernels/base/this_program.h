// The file of the running program, for starting it again as something else.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace lockstep {

// An absolute path. UNAVAILABLE without /proc.
absl::StatusOr<std::string> ThisProgram();

}  // namespace lockstep
