// The places of a job's ranks as a launcher tells them: "0/4,1/4" (PLACE/RANKS of its host), by
// rank.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "parallel/gpu_places.h"

namespace lockstep {

std::string FormatHostPlaces(std::span<const HostPlace> places);
// INVALID_ARGUMENT naming the part that is wrong, or their number when it is not num_ranks.
absl::StatusOr<std::vector<HostPlace>> ParseHostPlaces(absl::string_view text, int num_ranks);

}  // namespace lockstep
