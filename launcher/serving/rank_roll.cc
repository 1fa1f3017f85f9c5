#include "launcher/serving/rank_roll.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "parallel/placement.h"

namespace lockstep {

RankRoll::RankRoll(std::vector<std::string> host_of_rank) {
  for (std::string& host : host_of_rank) ranks_.push_back({.host = std::move(host)});
}

void RankRoll::Advance(int rank, Progress progress) {
  if (rank < 0 || rank >= std::ssize(ranks_)) return;
  Rank& each = ranks_[static_cast<size_t>(rank)];
  if (each.progress >= progress) return;
  each.progress = progress;
  if (progress == Progress::kChecked) ++num_checked_;
}

void RankRoll::Started(int rank, const RankStarted& started) {
  Advance(rank, Progress::kStarted);
  if (rank >= 0 && rank < std::ssize(ranks_)) ranks_[static_cast<size_t>(rank)].host = started.host;
}

// "ranks 8-9 on b, rank 12 on c".
std::string RankRoll::RanksAt(Progress progress) const {
  std::vector<std::string> parts;
  for (size_t begin = 0, end = 0; begin < ranks_.size(); begin = end) {
    std::vector<int> ranks;
    for (end = begin; end < ranks_.size() && ranks_[end].host == ranks_[begin].host; ++end) {
      if (ranks_[end].progress == progress) ranks.push_back(static_cast<int>(end));
    }
    if (!ranks.empty()) {
      parts.push_back(absl::StrCat(FormatRanks(ranks), " on ", ranks_[begin].host));
    }
  }
  return absl::StrJoin(parts, ", ");
}

std::string RankRoll::Missing(const std::string& worker_address) const {
  const auto slowest =
      std::min_element(ranks_.begin(), ranks_.end(),
                       [](const Rank& a, const Rank& b) { return a.progress < b.progress; });
  if (slowest == ranks_.end()) return "";
  const std::string ranks = RanksAt(slowest->progress);
  switch (slowest->progress) {
    case Progress::kSilent:
      return absl::StrCat(ranks, " did not start");
    case Progress::kStarted:
      return absl::StrCat(ranks, " started, but did not get through MPI's start: see --network");
    case Progress::kMet:
      return absl::StrCat(ranks, " met over MPI, but did not get to ", worker_address,
                          ": see --worker-listen; on GPUs ranks join over NCCL first: see ",
                          "--network, and what they say with NCCL_DEBUG=INFO");
    case Progress::kJoined:
      return absl::StrCat(
          ranks, " joined, but could not check the links between ranks: ", "see --network");
    case Progress::kChecked:
      break;
  }
  return "";
}

}  // namespace lockstep
