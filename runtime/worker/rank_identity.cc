#include "runtime/worker/rank_identity.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "model/stable_hash.h"

namespace lockstep {
namespace {

struct Fact {
  const char* what;
  std::string RankIdentity::*value;
  const char* mend;
  bool of_stage = false;  // stages may differ
};

constexpr char kInstall[] = "install the same on all hosts";

// The first one that differs is told: of other versions the rest may mean something else.
constexpr Fact kFacts[] = {
    {"version", &RankIdentity::version, kInstall},
    {"model", &RankIdentity::model, "start all ranks with the same MODEL and --quantize"},
    {"tokenizer.json", &RankIdentity::tokenizer, "copy all of MODEL to all hosts"},
    {"device", &RankIdentity::device, "start all ranks with the same --device, where it is"},
    {"dtype", &RankIdentity::dtype, "start all ranks with the same --dtype and --kv-cache-dtype"},
    {"--deterministic", &RankIdentity::deterministic,
     "start all ranks with --deterministic, or all without"},
    {"--block-size", &RankIdentity::block_size, "start all ranks with the same --block-size"},
    {"--max-num-seqs", &RankIdentity::max_num_seqs, "start all ranks with the same --max-num-seqs"},
    {"--max-batched-tokens", &RankIdentity::max_batched_tokens,
     "start all ranks with the same --max-batched-tokens"},
    {"--max-model-len", &RankIdentity::max_model_len,
     "start all ranks with the same --max-model-len"},
    {"FP8 weights", &RankIdentity::fp8_weights, "give the ranks of a stage GPUs of one kind",
     /*of_stage=*/true},
};
constexpr size_t kMostValueBytes = 300;

// A field to a line: those of kFacts first.
std::string Serialize(const RankIdentity& rank) {
  std::vector<std::string> lines;
  const auto add = [&lines](const std::string& text) {
    lines.push_back(text.size() <= kMostValueBytes
                        ? text
                        : absl::StrCat(text.substr(0, kMostValueBytes - 20), "...#",
                                       absl::Hex(Fnv1a64(text), absl::kZeroPad16)));
  };
  for (const Fact& fact : kFacts) add(rank.*fact.value);
  add(rank.host);
  add(absl::StrCat(rank.is_loaded));
  return absl::StrJoin(lines, "\n");
}

RankIdentity Parse(const char* text) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  const auto line = [&lines](size_t index) { return index < lines.size() ? lines[index] : ""; };
  RankIdentity rank;
  for (size_t i = 0; i < std::size(kFacts); ++i) rank.*kFacts[i].value = line(i);
  rank.host = line(std::size(kFacts));
  rank.is_loaded = line(std::size(kFacts) + 1) == "1";
  return rank;
}

absl::Status CheckSame(const Fact& fact, std::span<const RankIdentity> ranks, size_t rank,
                       size_t other) {
  const std::string& value = ranks[rank].*fact.value;
  const std::string& others = ranks[other].*fact.value;
  if (value == others) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", rank, " on ", ranks[rank].host, " has ", fact.what, " ", value,
                   ", rank ", other, " on ", ranks[other].host, " has ", others, ": ", fact.mend));
}

}  // namespace

absl::StatusOr<std::vector<RankIdentity>> IdentityExchange::Run(const ProcessGrid& grid,
                                                                RankGroups& groups,
                                                                const RankIdentity& mine) {
  const std::string text = Serialize(mine);
  LS_CHECK_LT(text.size(), mine_.size());
  std::memcpy(mine_.data(), text.data(), text.size());
  of_stage_.resize(static_cast<size_t>(grid.tp()));
  of_all_.resize(static_cast<size_t>(grid.world_size()));
  // First over my stage, then the stages: the order of ranks.
  constexpr int64_t kBytes = sizeof(Record);
  RETURN_IF_ERROR(groups.tp->AllGather(mine_.data(), kBytes, of_stage_.data()));
  RETURN_IF_ERROR(groups.pp->AllGather(of_stage_.data(), grid.tp() * kBytes, of_all_.data()));
  std::vector<RankIdentity> ranks;
  for (Record& record : of_all_) {
    record.back() = '\0';
    ranks.push_back(Parse(record.data()));
  }
  return ranks;
}

absl::Status CheckIdentities(const ProcessGrid& grid, std::span<const RankIdentity> ranks) {
  for (const Fact& fact : kFacts) {
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const int stage = grid.stage_of(static_cast<int>(rank));
      const int first = fact.of_stage ? grid.rank_of(stage, 0) : 0;
      RETURN_IF_ERROR(CheckSame(fact, ranks, rank, static_cast<size_t>(first)));
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep
