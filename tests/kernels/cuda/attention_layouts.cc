#include "tests/kernels/cuda/attention_layouts.h"

#include <map>

namespace lockstep::cuda {
namespace {

// Of partial results that one split takes.
int RowsOf(const AttentionItem& item, const AttentionForm& form) {
  return std::min(form.tile_rows, item.num_rows - item.first_row);
}
int64_t SplitsOf(const AttentionItem& item, const AttentionWork& work) {
  return (item.end - item.first + work.split_tokens() - 1) / work.split_tokens();
}

}  // namespace

void ExpectCovers(const AttentionWork& work, const Batch& batch, const AttentionHeads& heads,
                  int64_t workspace_bytes) {
  const AttentionForm& form = work.form();
  const int group = heads.num_heads / heads.num_kv_heads;
  std::set<std::pair<int, int>> tiles;  // a sequence's table, first row
  for (const Lists& lists : ListsOf(work)) {
    std::map<std::pair<int, int>, std::vector<AttentionItem>> tile_items;
    std::set<int> rows_taken;  // of partial results
    for (const AttentionItem& item : lists.items) {
      tile_items[{item.table, item.first_row}].push_back(item);
      EXPECT_LT(item.first, item.end);
      EXPECT_EQ(item.first % work.split_tokens(), 0);
      if (item.slot < 0) continue;
      const int rows = RowsOf(item, form) * static_cast<int>(SplitsOf(item, work));
      for (int row = item.slot; row < item.slot + rows; ++row) {
        EXPECT_TRUE(rows_taken.insert(row).second) << "two splits in row " << row;
      }
      EXPECT_LE(item.slot + rows, AttentionPartialRows(heads, workspace_bytes));
    }
    size_t num_merged = 0;
    for (const auto& [tile, items] : tile_items) {
      EXPECT_TRUE(tiles.insert(tile).second) << "a tile in two launches";
      const size_t seq = batch.SequenceOf(tile.first);
      const int num_tokens = batch.starts()[seq + 1] - batch.starts()[seq];
      const int last_row = std::min(tile.second + form.tile_rows, num_tokens * group) - 1;
      const int end = batch.contexts()[seq] - num_tokens + last_row / group + 1;
      int first = 0;
      for (const AttentionItem& item : items) {
        EXPECT_EQ(item.first_token, batch.starts()[seq]);
        EXPECT_EQ(item.first_position, batch.contexts()[seq] - num_tokens);
        EXPECT_EQ(item.num_rows, num_tokens * group);
        EXPECT_EQ(item.first, first);
        const int slot =
            items[0].slot + first / static_cast<int>(work.split_tokens()) * RowsOf(item, form);
        EXPECT_EQ(item.slot, end <= work.split_tokens() ? -1 : slot);
        first = item.end;
        if (first != end) {
          EXPECT_EQ(first % work.split_tokens(), 0);
        }
      }
      EXPECT_EQ(first, end);
      if (end <= work.split_tokens()) continue;
      ++num_merged;
      const auto merge = std::find_if(lists.merges.begin(), lists.merges.end(), [&](auto& m) {
        return m.table == tile.first && m.first_row == tile.second;
      });
      ASSERT_NE(merge, lists.merges.end());
      EXPECT_EQ(merge->slot, items[0].slot);
      EXPECT_EQ(merge->first, work.split_tokens());
    }
    EXPECT_EQ(lists.merges.size(), num_merged);
  }
  size_t num_tiles = 0;
  for (size_t seq = 0; seq < batch.contexts().size(); ++seq) {
    const int rows = (batch.starts()[seq + 1] - batch.starts()[seq]) * group;
    if (batch.contexts()[seq] > 0) num_tiles += (rows + form.tile_rows - 1) / form.tile_rows;
  }
  EXPECT_EQ(tiles.size(), num_tiles);
}

std::set<uint64_t> FormsAskedFor(const Batch& batch, const AttentionMachine& machine,
                                 const AttentionHeads& heads) {
  std::set<uint64_t> forms;
  for (const AttentionCut cut :
       {AttentionCut::kWhole, AttentionCut::kTiles, AttentionCut::kSplits}) {
    const AttentionWork work = Cut(batch, machine, heads, DType::kBF16, cut);
    ExpectCovers(work, batch, heads, machine.workspace_bytes);
    forms.insert(work.form().Packed());
  }
  return forms;
}

}  // namespace lockstep::cuda
