// What ranks tell each other of their hosts and GPUs, before anything depends on it: text, a field
// to a line, behind the version, which says what the rest is.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "parallel/gpu_places.h"

namespace lockstep {

std::string FormatRankGpus(const RankGpus& rank);
// By rank. FAILED_PRECONDITION naming one of another version, and both versions.
absl::StatusOr<std::vector<RankGpus>> ParseRankGpus(std::span<const std::string> texts);

}  // namespace lockstep
