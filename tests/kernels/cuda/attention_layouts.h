// Batches of attention and what they are cut into: what tests of the layout share.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/attention_layout.h"

namespace lockstep::cuda {

constexpr AttentionHeads kHeads = {32, 8, 128};
constexpr AttentionHeads kOneHead = {8, 1, 128};  // as ranks of tensor parallelism have
constexpr int kMultiprocessors = 132;
constexpr AttentionMachine kMachine = {.num_multiprocessors = kMultiprocessors};
constexpr AttentionMachine kByWgmma = {.num_multiprocessors = kMultiprocessors, .wgmma = true};
constexpr AttentionMachine kFixed = {.num_multiprocessors = kMultiprocessors,
                                     .fixed_splits = true,
                                     .workspace_bytes = kFixedAttentionWorkspaceBytes};
constexpr int32_t kLongest = 131072;

// Tokens of one sequence: in the batch, and in its context with them.
struct Sequence {
  int32_t new_tokens;
  int32_t context;
};

class Batch {
 public:
  explicit Batch(const std::vector<Sequence>& sequences) {
    for (const auto& [new_tokens, context] : sequences) {
      starts_.push_back(starts_.back() + new_tokens);
      contexts_.push_back(context);
    }
    for (size_t seq = 0; seq < contexts_.size(); ++seq) rows_.push_back(RowOf(seq));
  }
  AttentionBatch view(AttentionCut cut) const {
    return {starts_, contexts_, rows_, kWidth, cut, kLongest};
  }
  // Whose block table begins there.
  size_t SequenceOf(int32_t table) const {
    EXPECT_EQ(table % kWidth, 0);
    const auto found = std::find(rows_.begin(), rows_.end(), table / kWidth);
    EXPECT_NE(found, rows_.end());
    return static_cast<size_t>(found - rows_.begin());
  }
  const std::vector<int32_t>& starts() const { return starts_; }
  const std::vector<int32_t>& contexts() const { return contexts_; }

 private:
  static constexpr int64_t kWidth = 8192;
  int32_t RowOf(size_t seq) const { return static_cast<int32_t>(3 * (contexts_.size() - seq)); }

  std::vector<int32_t> starts_ = {0};
  std::vector<int32_t> contexts_;
  std::vector<int32_t> rows_;  // of the block tables, some of which are others'
};

inline Batch Decodes(int count, int32_t context) {
  return Batch(std::vector<Sequence>(static_cast<size_t>(count), {1, context}));
}
inline Batch OneLong(int count, int32_t new_tokens, int32_t context, int32_t longest) {
  std::vector<Sequence> sequences(static_cast<size_t>(count), {new_tokens, context});
  sequences[sequences.size() / 2].context = longest;
  return Batch(sequences);
}

inline AttentionWork Cut(const Batch& batch, const AttentionMachine& machine,
                         const AttentionHeads& heads = kHeads, DType dtype = DType::kBF16,
                         AttentionCut cut = AttentionCut::kBest) {
  AttentionWork work;
  work.LayOut(batch.view(cut), heads, dtype, machine);
  return work;
}

struct Lists {
  std::vector<AttentionItem> items;
  std::vector<AttentionMerge> merges;
};
inline std::vector<Lists> ListsOf(const AttentionWork& work) {
  std::vector<Lists> all;
  const AttentionForm& form = work.form();
  for (int launch = 0; launch < form.launches; ++launch) {
    const auto* header =
        reinterpret_cast<const AttentionHeader*>(work.bytes().data() + launch * form.LaunchBytes());
    const auto* items = reinterpret_cast<const AttentionItem*>(header + 1);
    EXPECT_LE(header->num_items, form.items);
    EXPECT_LE(header->num_merges, form.merges);
    const auto* merges = items + form.items;
    all.push_back({{items, items + header->num_items}, {merges, merges + header->num_merges}});
  }
  return all;
}
inline size_t NumItems(const AttentionWork& work) { return ListsOf(work)[0].items.size(); }

// All rows of all sequences, each once, with all of the context that the tile's last row sees, in
// splits that are merged if they are several.
void ExpectCovers(const AttentionWork& work, const Batch& batch, const AttentionHeads& heads,
                  int64_t workspace_bytes);

// Those of a step of the same size with short contexts, as it is recorded before any come.
std::set<uint64_t> FormsAskedFor(const Batch& batch, const AttentionMachine& machine,
                                 const AttentionHeads& heads);

}  // namespace lockstep::cuda
