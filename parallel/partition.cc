#include "parallel/partition.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/check.h"

namespace lockstep {
namespace {

// Far above any model and far below where the arithmetic here could overflow.
constexpr int64_t kMaxExtent = int64_t{1} << 40;
constexpr int kMaxTp = 65536;
constexpr int kNumSlices = 8;

absl::Status CheckExtent(const char* name, int64_t value) {
  if (value >= 1 && value <= kMaxExtent) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %d; it must be between 1 and %d", name, value, kMaxExtent));
}

absl::Status CheckSizes(const ShardedSizes& sizes) {
  const std::pair<const char*, int64_t> extents[] = {
      {"num_layers", sizes.num_layers},     {"num_heads", sizes.num_heads},
      {"num_kv_heads", sizes.num_kv_heads}, {"intermediate_size", sizes.intermediate_size},
      {"vocab_size", sizes.vocab_size},     {"hidden_size", sizes.hidden_size},
  };
  for (const auto& [name, value] : extents) {
    if (absl::Status status = CheckExtent(name, value); !status.ok()) return status;
  }
  if (sizes.num_heads % sizes.num_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "num_kv_heads %d does not divide num_heads %d", sizes.num_kv_heads, sizes.num_heads));
  }
  return absl::OkStatus();
}

bool SplitsKvHeads(const ShardedSizes& sizes, int64_t tp) {
  return sizes.num_kv_heads % tp == 0 || tp % sizes.num_kv_heads == 0;
}

bool TpWorks(const ShardedSizes& sizes, int64_t tp) {
  return sizes.num_heads % tp == 0 && sizes.intermediate_size % tp == 0 && SplitsKvHeads(sizes, tp);
}

std::string WorkingTps(const ShardedSizes& sizes) {
  constexpr size_t kMaxListed = 16;
  std::vector<int64_t> working;
  const int64_t largest = std::min<int64_t>(sizes.num_heads, kMaxTp);
  for (int64_t tp = 1; tp <= largest && working.size() < kMaxListed; ++tp) {
    if (TpWorks(sizes, tp)) working.push_back(tp);
  }
  return absl::StrJoin(working, ", ");
}

absl::Status CheckTp(const ShardedSizes& sizes, int tp) {
  if (tp >= 1 && tp <= kMaxTp && TpWorks(sizes, tp)) return absl::OkStatus();
  std::vector<std::string> reasons;
  if (tp < 1 || tp > kMaxTp) {
    reasons.push_back(absl::StrFormat("is not between 1 and %d", kMaxTp));
  } else {
    if (sizes.num_heads % tp != 0) {
      reasons.push_back(absl::StrFormat("does not divide num_heads %d", sizes.num_heads));
    }
    if (sizes.intermediate_size % tp != 0) {
      reasons.push_back(
          absl::StrFormat("does not divide intermediate_size %d", sizes.intermediate_size));
    }
    if (!SplitsKvHeads(sizes, tp)) {
      reasons.push_back(absl::StrFormat("neither divides num_kv_heads %d nor is a multiple of it",
                                        sizes.num_kv_heads));
    }
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "tp %d %s; values of tp that work: %s", tp, absl::StrJoin(reasons, ", "), WorkingTps(sizes)));
}

Range EqualShare(int64_t extent, int tp, int tp_rank) {
  LS_CHECK(tp >= 1 && tp_rank >= 0 && tp_rank < tp) << "rank " << tp_rank << " of " << tp;
  LS_CHECK_EQ(extent % tp, 0);
  const int64_t share = extent / tp;
  return {tp_rank * share, (tp_rank + 1) * share};
}

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// What the LM head costs in layers. head_dim is not among the sizes; hidden_size / num_heads stands
// for it.
double HeadCostInLayers(const ShardedSizes& sizes) {
  const double hidden = static_cast<double>(sizes.hidden_size);
  const double kv_share = static_cast<double>(sizes.num_kv_heads) / sizes.num_heads;
  const double layer =
      hidden * hidden * (2.0 + 2.0 * kv_share) + 3.0 * hidden * sizes.intermediate_size;
  return hidden * sizes.vocab_size / layer;
}

// Of pp >= 2 stages, `last` layers on the last one, in layers: the largest stage's cost of a token.
struct Bottlenecks {
  double decode;  // every token has logits
  double prompt;  // one of many has

  // How many times those of the best splits; the worse of the two.
  double Over(const Bottlenecks& best) const {
    return std::max(decode / best.decode, prompt / best.prompt);
  }
};

Bottlenecks BottlenecksOf(const ShardedSizes& sizes, int pp, int64_t last) {
  const auto most = static_cast<double>(CeilDivide(sizes.num_layers - last, pp - 1));
  const auto layers = static_cast<double>(last);
  return {std::max(most, layers + HeadCostInLayers(sizes)), std::max(most, layers)};
}

// The number of layers on the last of pp >= 2 stages that neither decodes nor prompts suffer from
// more than they must; of equals the most.
int64_t LayersOnLastStage(const ShardedSizes& sizes, int pp) {
  const int64_t end = std::min(CeilDivide(sizes.num_layers, pp), sizes.num_layers - (pp - 1)) + 1;
  Bottlenecks least = BottlenecksOf(sizes, pp, 1);
  for (int64_t last = 2; last < end; ++last) {
    const Bottlenecks these = BottlenecksOf(sizes, pp, last);
    least = {std::min(least.decode, these.decode), std::min(least.prompt, these.prompt)};
  }
  int64_t best = 1;
  double best_over = BottlenecksOf(sizes, pp, 1).Over(least);
  for (int64_t last = 2; last < end; ++last) {
    const double over = BottlenecksOf(sizes, pp, last).Over(least);
    if (over > best_over) continue;
    best = last;
    best_over = over;
  }
  return best;
}

}  // namespace

absl::Status CheckLayout(const ShardedSizes& sizes, int tp, int pp) {
  if (absl::Status status = CheckSizes(sizes); !status.ok()) return status;
  if (absl::Status status = CheckTp(sizes, tp); !status.ok()) return status;
  if (pp < 1 || pp > sizes.num_layers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("pp %d does not fit num_layers %d; values of pp that work: 1 to %d", pp,
                        sizes.num_layers, sizes.num_layers));
  }
  return absl::OkStatus();
}

int NumKSlices(int64_t extent, int tp) {
  LS_CHECK(extent >= 1 && tp >= 1) << "extent " << extent << ", tp " << tp;
  LS_CHECK_EQ(extent % tp, 0);
  int slices = kNumSlices;
  while (extent % slices != 0) slices /= 2;
  return slices % tp == 0 ? slices : tp;
}

Range QueryHeadsOf(const ShardedSizes& sizes, int tp, int tp_rank) {
  return EqualShare(sizes.num_heads, tp, tp_rank);
}

Range KvHeadsOf(const ShardedSizes& sizes, int tp, int tp_rank) {
  if (tp <= sizes.num_kv_heads) return EqualShare(sizes.num_kv_heads, tp, tp_rank);
  LS_CHECK_EQ(tp % sizes.num_kv_heads, 0);
  LS_CHECK(tp_rank >= 0 && tp_rank < tp) << "rank " << tp_rank << " of " << tp;
  const int64_t head = tp_rank / (tp / sizes.num_kv_heads);
  return {head, head + 1};
}

Range IntermediateOf(const ShardedSizes& sizes, int tp, int tp_rank) {
  return EqualShare(sizes.intermediate_size, tp, tp_rank);
}

int NumVocabSlices(int tp) {
  LS_CHECK(tp >= 1 && tp <= kMaxTp) << "tp " << tp;
  return static_cast<int>(CeilDivide(kNumSlices, tp)) * tp;
}

Range VocabSlice(const ShardedSizes& sizes, int tp, int slice) {
  const int num_slices = NumVocabSlices(tp);
  LS_CHECK(slice >= 0 && slice < num_slices) << "slice " << slice << " of " << num_slices;
  const int64_t width = CeilDivide(sizes.vocab_size, num_slices);
  return {std::min(slice * width, sizes.vocab_size),
          std::min((slice + 1) * width, sizes.vocab_size)};
}

Range VocabOf(const ShardedSizes& sizes, int tp, int tp_rank) {
  LS_CHECK(tp_rank >= 0 && tp_rank < tp) << "rank " << tp_rank << " of " << tp;
  const int per_rank = NumVocabSlices(tp) / tp;
  return {VocabSlice(sizes, tp, tp_rank * per_rank).begin,
          VocabSlice(sizes, tp, (tp_rank + 1) * per_rank - 1).end};
}

std::vector<Range> LayersOfStages(const ShardedSizes& sizes, int pp) {
  LS_CHECK(pp >= 1 && pp <= sizes.num_layers) << "pp " << pp << ", layers " << sizes.num_layers;
  if (pp == 1) return {{0, sizes.num_layers}};
  const int64_t others = sizes.num_layers - LayersOnLastStage(sizes, pp);
  const int64_t smaller = others / (pp - 1);
  const int64_t num_smaller = (pp - 1) - others % (pp - 1);
  std::vector<Range> stages;
  int64_t next = 0;
  for (int stage = 0; stage < pp - 1; ++stage) {
    const int64_t count = smaller + (stage >= num_smaller ? 1 : 0);
    stages.push_back({next, next + count});
    next += count;
  }
  stages.push_back({next, sizes.num_layers});
  return stages;
}

}  // namespace lockstep
