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

int64_t ShownCache::num_sequences() const {
  return num_blocks / std::max<int64_t>(1, (max_model_len + block_size - 1) / block_size);
}

std::vector<std::string> CacheLines(const ShownCache& cache) {
  const int64_t tokens = cache.num_tokens();
  const int64_t sequences = cache.num_sequences();
  std::vector<std::string> lines = {absl::StrFormat(
      "KV cache %s blocks of %d tokens%s = %s tokens, %s sequence%s of %s; %s in all",
      FormatCount(cache.num_blocks), cache.block_size, cache.is_fp8 ? " in fp8" : "",
      FormatCount(tokens), FormatCount(sequences), sequences == 1 ? "" : "s",
      FormatCount(cache.max_model_len), FormatBytes(tokens * cache.bytes_per_token))};
  if (cache.num_host_blocks == 0) return lines;
  const int64_t copied_tokens = cache.num_host_blocks * cache.block_size;
  lines.push_back(
      absl::StrFormat("         copies of %s blocks = %s tokens in the memory of hosts; %s in all",
                      FormatCount(cache.num_host_blocks), FormatCount(copied_tokens),
                      FormatBytes(copied_tokens * cache.bytes_per_token)));
  if (cache.num_host_blocks <= cache.num_blocks) {
    lines.push_back("         these are no more than the cache has: raise --kv-offload-gib");
  }
  return lines;
}

}  // namespace lockstep
