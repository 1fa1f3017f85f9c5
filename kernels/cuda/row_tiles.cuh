// The rows that the blocks of an attention kernel work on: (query token, head of a KV head's group)
// pairs of one sequence, row = token * group + head.
#pragma once

#include "kernels/cuda/attention_params.cuh"

namespace lockstep::cuda {

// One row of a tile.
struct TileRow {
  int token = -1;
  int head = 0;
  int position = -1;  // below all that exist for rows that don't

  // `row` counts from the sequence's first; there are `num_rows`.
  __device__ TileRow(const AttentionParams& p, int first_token, int kv_head, int row,
                     int num_rows) {
    if (row >= num_rows) return;
    token = first_token + row / p.group;
    head = kv_head * p.group + row % p.group;
    position = p.positions[token];
  }
  __device__ bool Exists() const { return token >= 0; }
};

// The rows that a block works on.
struct RowTile {
  int seq;
  int first_token;  // of the sequence
  int first_row;    // of the tile, counted from the sequence's first
  int num_rows;     // of the sequence

  // Of rows that exist.
  __device__ int Position(const AttentionParams& p, int row) const {
    return p.positions[first_token + row / p.group];
  }
  __device__ TileRow Row(const AttentionParams& p, int kv_head, int row) const {
    return TileRow(p, first_token, kv_head, row, num_rows);
  }
};

// Tiles are numbered such that sequence s begins at query_starts[s] * group / kRows + s: there
// every sequence has room for its rows, whatever their number, and nobody needs to add up others'
// tiles. The last come first, as they have the longest context.
template <int kRows>
__device__ bool FindRowTile(const AttentionParams& p, RowTile& tile) {
  const int number = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  int within;
  if (p.tokens_are_sequences) {
    const int tiles = CeilDiv(p.group, kRows);
    tile.seq = tile.first_token = number / tiles;
    tile.num_rows = p.group;
    within = number % tiles;
  } else {
    const auto start = [&](int seq) { return p.query_starts[seq] * p.group / kRows + seq; };
    tile.seq = LastNotAbove(p.num_seqs, number, start);
    within = number - start(tile.seq);
    tile.first_token = p.query_starts[tile.seq];
    tile.num_rows = (p.query_starts[tile.seq + 1] - tile.first_token) * p.group;
  }
  tile.first_row = within * kRows;
  return tile.first_row < tile.num_rows && p.context_lens[tile.seq] > 0;
}

}  // namespace lockstep::cuda
