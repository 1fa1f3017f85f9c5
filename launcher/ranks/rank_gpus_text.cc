#include "launcher/ranks/rank_gpus_text.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/version.h"
#include "launcher/cli/host_places.h"
#include "launcher/cli/values.h"

namespace lockstep {
namespace {

absl::StatusOr<RankGpus> Parse(int teller, const std::string& text) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (lines[0] != Version()) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", teller, " is of another lockstep, ", OneLine(lines[0]).substr(0, 64),
                     ": this one is ", Version(), "; install the same on all hosts"));
  }
  RankGpus rank;
  const auto place = ParseHostPlaces(lines.size() > 3 ? lines[3] : "", /*num_ranks=*/1);
  if (!place.ok() || !absl::SimpleAtoi(lines[1], &rank.node)) {
    return absl::InternalError(absl::StrCat("rank ", teller, " tells: ", OneLine(text)));
  }
  rank.host = lines[2];
  rank.place = place->front();
  if (lines.size() > 4) rank.why_none = lines[4];
  for (size_t i = 5; i < lines.size(); ++i) {
    if (lines[i].empty()) continue;
    const std::pair<std::string, std::string> words =
        absl::StrSplit(lines[i], absl::MaxSplits(' ', 1));
    rank.gpus.push_back({words.first, words.second});
  }
  return rank;
}

}  // namespace

std::string FormatRankGpus(const RankGpus& rank) {
  return absl::StrCat(Version(), "\n", rank.node, "\n", rank.host, "\n",
                      FormatHostPlaces({&rank.place, 1}), "\n", rank.why_none, "\n",
                      absl::StrJoin(rank.gpus, "\n", [](std::string* out, const SeenGpu& gpu) {
                        absl::StrAppend(out, gpu.uuid, " ", gpu.bus_id);
                      }));
}

absl::StatusOr<std::vector<RankGpus>> ParseRankGpus(std::span<const std::string> texts) {
  std::vector<RankGpus> ranks;
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(RankGpus rank, Parse(static_cast<int>(ranks.size()), text));
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

}  // namespace lockstep
