// Who owns which rows: the arithmetic of sharding a Llama over a ProcessGrid. Pure; the test is the
// specification.
//
// Every function takes validated sizes (CheckLayout first) and CHECKs its preconditions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace lockstep {

// Half-open [begin, end).
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// The sizes of a model that sharding depends on.
struct ShardedSizes {
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t intermediate_size = 0;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
};

// Can the model be split this way? tp must divide num_heads and intermediate_size, and divide
// num_kv_heads or be a multiple of it (heads are then replicated); pp must not exceed num_layers.
// INVALID_ARGUMENT names the numbers that do not divide and the values of tp (or pp) that would.
absl::Status CheckLayout(const ShardedSizes& sizes, int tp, int pp);

// K-slices of the row-parallel products (o_proj over heads, down_proj over intermediate_size), in
// the whole model: the largest power of two <= 8 that divides the extent, when tp divides that;
// else tp itself.
//
// Layouts of equal slice counts add the same numbers in the same tree, hence give the same bits:
// every tp in {1, 2, 4, 8} that divides that power of two. A tp outside this family (3, 16, or 4
// where the extent is 4 * odd and tp is 8) is as exact as any other but rounds differently.
int NumKSlices(int64_t extent, int tp);

Range QueryHeadsOf(const ShardedSizes& sizes, int tp, int tp_rank);
// With tp > num_kv_heads, tp / num_kv_heads consecutive ranks hold the same head.
Range KvHeadsOf(const ShardedSizes& sizes, int tp, int tp_rank);
Range IntermediateOf(const ShardedSizes& sizes, int tp, int tp_rank);

// The vocabulary in equal slices, padded at the end: VocabSlice(i) may be short or empty for the
// last ones. There are NumVocabSlices(tp) of them, the smallest multiple of tp that is at least 8,
// each rank owning consecutive ones, so that per-slice statistics of the logits are the same for
// every tp in {1, 2, 4, 8}.
int NumVocabSlices(int tp);
Range VocabSlice(const ShardedSizes& sizes, int tp, int slice);
Range VocabOf(const ShardedSizes& sizes, int tp, int tp_rank);

// Layers per stage, contiguous, every stage at least one. The last stage's LM head costs as much as
// some layers (multiply-adds per token, head = vocab_size * hidden_size) where tokens are decoded
// and next to nothing in prompts, where one token of many has logits. A split that is even for the
// one is uneven for the other: chosen is the one whose largest stage exceeds what it could be by
// the smallest factor, in the worse of the two. (That of prompts the last layer computes little
// beyond attention is not counted: of Llama's shapes it would move a layer at most.) The embedding,
// a copy, counts nothing. Stages before the last differ by one layer at most, the larger ones later
// (the first also holds the embedding table).
std::vector<Range> LayersOfStages(const ShardedSizes& sizes, int pp);

}  // namespace lockstep
