#include "parallel/gpu_places.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/check.h"
#include "parallel/placement.h"

namespace lockstep {
namespace {

int GpuOf(const RankGpus& rank) { return rank.place.place % static_cast<int>(rank.gpus.size()); }

const SeenGpu& SeenGpuOf(const RankGpus& rank) {
  return rank.gpus[static_cast<size_t>(GpuOf(rank))];
}

const std::string& UuidOf(const RankGpus& rank) { return SeenGpuOf(rank).uuid; }

bool SeeTheSame(const RankGpus& a, const RankGpus& b) {
  return std::equal(a.gpus.begin(), a.gpus.end(), b.gpus.begin(), b.gpus.end(),
                    [](const SeenGpu& x, const SeenGpu& y) { return x.uuid == y.uuid; });
}

// Of the ranks of the host's jobs, if all see the same GPUs.
int NumByPlace(const RankGpus& rank) {
  const int num_gpus = static_cast<int>(rank.gpus.size());
  return (rank.place.num_ranks - GpuOf(rank) + num_gpus - 1) / num_gpus;
}

std::string Name(std::span<const RankGpus> ranks, size_t rank) {
  return absl::StrCat("rank ", rank, " on ", ranks[rank].host);
}

absl::Status CheckAlike(std::span<const RankGpus> ranks) {
  size_t with = ranks.size();
  size_t without = ranks.size();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    size_t& first = ranks[rank].gpus.empty() ? without : with;
    first = std::min(first, rank);
  }
  if (with == ranks.size() || without == ranks.size()) return absl::OkStatus();
  const std::string& why = ranks[without].why_none;
  return absl::FailedPreconditionError(absl::StrCat(
      Name(ranks, with), " has a GPU, ", Name(ranks, without), " has none",
      why.empty() ? "" : absl::StrCat(" (", why, ")"), ": give all ranks GPUs, or --device cpu"));
}

// "2 GPUs that are seen there (0000:01:00.0, 0000:02:00.0)".
std::string ShowGpus(const std::vector<SeenGpu>& gpus) {
  const std::string ids = absl::StrJoin(
      gpus, ", ", [](std::string* out, const SeenGpu& gpu) { out->append(gpu.bus_id); });
  return absl::StrCat(gpus.size(), gpus.size() == 1 ? " GPU that is" : " GPUs that are",
                      " seen there (", ids, ")");
}

// who: "ranks 0, 7 on a", the first of which sees `first`'s GPUs.
absl::Status RefuseSharing(const std::string& who, const RankGpus& first, bool may_share) {
  const std::string fewer =
      absl::StrCat("start at most ", first.gpus.size(), first.gpus.size() == 1 ? " rank" : " ranks",
                   " there (--tp, --pp, --replicas; --tp 1 needs ", "one GPU)");
  const std::string advice =
      may_share ? absl::StrCat("--share-gpus is for ranks that are all on one host: ", fewer)
                : absl::StrCat("is one lost, or hidden by CUDA_VISIBLE_DEVICES or the allocation? ",
                               "Else ", fewer, ", compute with --device cpu, or pass --share-gpus ",
                               "(each has a part of the memory: for tests)");
  return absl::FailedPreconditionError(absl::StrCat(who, " would share the GPU ",
                                                    SeenGpuOf(first).bus_id, " of the ",
                                                    ShowGpus(first.gpus), "; ", advice));
}

// The ranks of each GPU, in the order of their first one.
std::vector<std::vector<int>> RanksByGpu(std::span<const RankGpus> ranks) {
  std::map<std::pair<int, std::string>, size_t> index;
  std::vector<std::vector<int>> ranks_of_gpu;
  for (int rank = 0; rank < std::ssize(ranks); ++rank) {
    const RankGpus& each = ranks[static_cast<size_t>(rank)];
    if (each.gpus.empty()) continue;
    const auto [gpu, is_new] = index.emplace(std::pair(each.node, UuidOf(each)), index.size());
    if (is_new) ranks_of_gpu.emplace_back();
    ranks_of_gpu[gpu->second].push_back(rank);
  }
  return ranks_of_gpu;
}

}  // namespace

absl::Status CheckSharing(std::span<const RankGpus> ranks, bool may_share) {
  const bool on_one_host = std::all_of(ranks.begin(), ranks.end(), [&](const RankGpus& rank) {
    return rank.node == ranks.front().node;
  });
  if (may_share && on_one_host) return absl::OkStatus();
  for (const std::vector<int>& sharing : RanksByGpu(ranks)) {
    if (sharing.size() == 1) continue;
    const RankGpus& first = ranks[static_cast<size_t>(sharing.front())];
    return RefuseSharing(absl::StrCat(FormatRanks(sharing), " on ", first.host), first, may_share);
  }
  if (may_share) return absl::OkStatus();
  for (int rank = 0; rank < std::ssize(ranks); ++rank) {
    const auto place = PlaceOnGpu(ranks, rank);
    if (!place.ok() || !place->has_value() || (*place)->num_sharing == 1) continue;
    const RankGpus& mine = ranks[static_cast<size_t>(rank)];
    return RefuseSharing(absl::StrCat(Name(ranks, static_cast<size_t>(rank)), ", with ",
                                      mine.place.num_ranks, " ranks of all replicas there,"),
                         mine, may_share);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<GpuPlace>> PlaceOnGpu(std::span<const RankGpus> ranks, int rank) {
  LS_CHECK(rank >= 0 && rank < std::ssize(ranks));
  if (absl::Status alike = CheckAlike(ranks); !alike.ok()) return alike;
  const RankGpus& mine = ranks[static_cast<size_t>(rank)];
  if (mine.gpus.empty()) return std::nullopt;
  GpuPlace found{.gpu = GpuOf(mine), .num_sharing = 0, .job_shares_gpus = false};
  std::set<std::pair<int, std::string>> taken;
  bool see_the_same = true;
  for (const RankGpus& other : ranks) {
    if (!taken.emplace(other.node, UuidOf(other)).second) found.job_shares_gpus = true;
    if (other.node != mine.node) continue;
    if (UuidOf(other) == UuidOf(mine)) ++found.num_sharing;
    see_the_same = see_the_same && SeeTheSame(other, mine);
  }
  // Of other jobs nothing is known but that they are started as this one.
  if (see_the_same) found.num_sharing = std::max(found.num_sharing, NumByPlace(mine));
  return found;
}

}  // namespace lockstep
