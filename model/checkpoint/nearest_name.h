// "Did you mean": the known name that a mistyped one is nearest to. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace lockstep {

// Levenshtein's distance, from a name's start where wanted is shorter, ASCII case ignored; of
// equals the first. names must not be empty.
std::string NearestName(const std::string& wanted, const std::vector<std::string>& names);

// NOT_FOUND: "gpu "h10" is not known; did you mean h100-sxm-80g? Known: ...".
absl::Status UnknownName(const std::string& what, const std::string& wanted,
                         const std::vector<std::string>& names);

}  // namespace lockstep
