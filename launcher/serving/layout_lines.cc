#include "launcher/serving/layout_lines.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "launcher/cli/values.h"

namespace lockstep {
namespace {

std::string StageLine(int stage, int tp, const PlannedCapacity& capacity) {
  const auto first = capacity.shards.begin() + stage * tp;
  int64_t largest = 0;
  std::for_each(first, first + tp,
                [&](const RankShard& shard) { largest = std::max(largest, shard.weight_bytes); });
  return absl::StrFormat(
      "  stage %d: layers %d to %d on rank%s %s, %s of weights each", stage, first->layers.begin,
      first->layers.end - 1, tp == 1 ? "" : "s",
      tp == 1 ? absl::StrCat(stage) : absl::StrCat(stage * tp, "-", stage * tp + tp - 1),
      FormatBytes(largest));
}

}  // namespace

std::vector<std::string> LayoutLines(const ShownLayout& layout, const PlannedCapacity& capacity) {
  std::string whole = absl::StrCat("Layout   tp ", layout.tp, " x pp ", layout.pp);
  if (layout.num_replicas > 1) absl::StrAppend(&whole, " x ", layout.num_replicas, " replicas");
  absl::StrAppend(&whole, " = ", Counted(layout.tp * layout.pp * layout.num_replicas, "rank"));
  if (layout.threads_per_rank) {
    absl::StrAppend(&whole, ", ", Counted(*layout.threads_per_rank, "thread"), " each");
  }
  std::vector<std::string> lines = {whole};
  for (int stage = 0; stage < layout.pp; ++stage) {
    lines.push_back(StageLine(stage, layout.tp, capacity));
  }
  return lines;
}

}  // namespace lockstep
