#include "parallel/gpu_places.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"

namespace lockstep {
namespace {

int GpuOf(const RankGpus& rank) { return rank.place.place % static_cast<int>(rank.uuids.size()); }

const std::string& UuidOf(const RankGpus& rank) {
  return rank.uuids[static_cast<size_t>(GpuOf(rank))];
}

// Of the ranks of the host's jobs, if all see the same GPUs.
int NumByPlace(const RankGpus& rank) {
  const int num_gpus = static_cast<int>(rank.uuids.size());
  return (rank.place.num_ranks - GpuOf(rank) + num_gpus - 1) / num_gpus;
}

std::string Name(std::span<const RankGpus> ranks, size_t rank) {
  return absl::StrCat("rank ", rank, " on ", ranks[rank].host);
}

absl::Status CheckAlike(std::span<const RankGpus> ranks) {
  size_t with = ranks.size();
  size_t without = ranks.size();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    size_t& first = ranks[rank].uuids.empty() ? without : with;
    first = std::min(first, rank);
  }
  if (with == ranks.size() || without == ranks.size()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(Name(ranks, with), " has a GPU, ", Name(ranks, without),
                   " has none: give all ranks GPUs, or --device cpu"));
}

}  // namespace

absl::StatusOr<std::optional<GpuPlace>> PlaceOnGpu(std::span<const RankGpus> ranks, int rank) {
  LS_CHECK(rank >= 0 && rank < std::ssize(ranks));
  if (absl::Status alike = CheckAlike(ranks); !alike.ok()) return alike;
  const RankGpus& mine = ranks[static_cast<size_t>(rank)];
  if (mine.uuids.empty()) return std::nullopt;
  GpuPlace found{.gpu = GpuOf(mine), .num_sharing = 0, .job_shares_gpus = false};
  std::set<std::pair<int, std::string>> taken;
  bool see_the_same = true;
  for (const RankGpus& other : ranks) {
    if (!taken.emplace(other.node, UuidOf(other)).second) found.job_shares_gpus = true;
    if (other.node != mine.node) continue;
    if (UuidOf(other) == UuidOf(mine)) ++found.num_sharing;
    see_the_same = see_the_same && other.uuids == mine.uuids;
  }
  // Of other jobs nothing is known but that they are started as this one.
  if (see_the_same) found.num_sharing = std::max(found.num_sharing, NumByPlace(mine));
  return found;
}

}  // namespace lockstep
