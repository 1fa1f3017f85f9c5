// What is launched for a step's attention.
#pragma once

#include <cstdint>

namespace lockstep::cuda {

constexpr int64_t kAttentionTile = 64;    // tokens of context whose scores are computed at once
constexpr int kAttentionChunkRows = 128;  // of chunks, to a tile
constexpr int kAttentionDecodeRows = 16;  // of decodes
constexpr int kAttentionF32Rows = 4;      // over f32 caches
constexpr int64_t kAttentionWorkspaceBytes = int64_t{64} << 20;  // of partial results
// Of splits of fixed length, of which there are as many as contexts are long: room for those of 128
// decodes of 131,072 tokens of a model with 32 heads of 128.
constexpr int64_t kFixedAttentionWorkspaceBytes = int64_t{256} << 20;

struct AttentionHeads {
  int num_heads = 0;
  int num_kv_heads = 0;  // divides num_heads
  int head_dim = 0;
};

// What is launched. Of batches that repeat there are three forms to a size, at most: whole
// contexts, splits of a tile (of few decodes) and of any length; with `fixed_splits` the first and
// the last.
struct AttentionForm {
  int tile_rows = kAttentionDecodeRows;
  bool decode = true;     // no sequence has more than one token
  bool one_tile = false;  // every split is of one tile, at most: a kernel of little shared memory
  bool several_splits = false;  // an item may be several, which a block walks in turn
  int items = 0;                // blocks to each KV head
  int merges = 0;    // tiles that may have several splits; 0: none has, and nothing is merged
  int launches = 1;  // of both; more where there may be no room for the splits of all tiles

  uint64_t Packed() const;
  static AttentionForm Unpacked(uint64_t packed);
  // A header, items and merges.
  int64_t LaunchBytes() const;
  // Rows of partial results that a split takes, of each KV head, at most.
  int PartialRows(const AttentionHeads& heads) const;
};

// Rows of partial results, of each KV head, that the workspace has room for.
int64_t AttentionPartialRows(const AttentionHeads& heads, int64_t workspace_bytes);

}  // namespace lockstep::cuda
