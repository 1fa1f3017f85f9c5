// The rows that the blocks of an attention kernel work on: (query token, head of a KV head's group)
// pairs of one sequence, row = token * group + head.
#pragma once

#include "kernels/cuda/attention_params.cuh"

namespace lockstep::cuda {

// The rows that a block works on.
struct RowTile {
  int seq;
  int first_token;     // of the sequence
  int first_position;  // of the sequence's first token
  int first_row;       // of the tile, counted from the sequence's first
  int num_rows;        // of the sequence

  template <int kRows>
  __device__ int LastRow() const {
    return min(first_row + kRows, num_rows) - 1;
  }
  // Of a row, counted from the sequence's first.
  __device__ int Token(const AttentionParams& p, int row) const {
    return first_token + row / p.by_group;
  }
  __device__ int Head(const AttentionParams& p, int kv_head, int row) const {
    return (kv_head - row / p.by_group) * p.group + row;
  }
  // Below all that exist for rows that don't.
  __device__ int Position(const AttentionParams& p, int row) const {
    return row < num_rows ? first_position + row / p.by_group : -1;
  }
};

// Tiles are numbered such that sequence s begins at query_starts[s] * group / kRows + s: there
// every sequence has room for its rows, whatever their number, and nobody needs to add up others'
// tiles. The last come first, as they have the longest context.
// False when the block has nothing to do. Once the sequence is found the length of its context
// tells: where one context is much longer than the others, most blocks are for splits that their
// sequence does not have, and each keeps shared memory from others until it has waited for its
// loads.
template <int kRows>
__device__ bool FindRowTile(const AttentionParams& p, RowTile& tile) {
  const int number = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  int within;
  int num_tokens = 1;
  if (p.tokens_are_sequences) {
    const int tiles = CeilDiv(p.group, kRows);
    tile.seq = tile.first_token = number / tiles;
    within = number % tiles;
  } else {
    const auto start = [&](int seq) { return p.query_starts[seq] * p.group / kRows + seq; };
    tile.seq = LastNotAbove(p.num_seqs, number, start);
    within = number - start(tile.seq);
    tile.first_token = p.query_starts[tile.seq];
    num_tokens = p.query_starts[tile.seq + 1] - tile.first_token;
  }
  const int context = p.context_lens[tile.seq];
  tile.first_position = context - num_tokens;
  tile.first_row = within * kRows;
  tile.num_rows = num_tokens * p.group;
  const int first = static_cast<int>(blockIdx.z) * p.split_tokens;
  if (first >= context || tile.first_row >= tile.num_rows) return false;
  return tile.Token(p, tile.first_row) < p.end_token &&
         tile.Token(p, tile.LastRow<kRows>()) >= p.first_token;
}

}  // namespace lockstep::cuda
