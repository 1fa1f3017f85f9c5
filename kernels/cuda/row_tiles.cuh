// The rows that the blocks of an attention kernel work on: (query token, head of a KV head's group)
// pairs of one sequence, row = token * group + head.
#pragma once

#include "kernels/cuda/attention_params.cuh"

namespace lockstep::cuda {

// The rows that a block works on.
struct RowTile {
  int seq;
  int first_token;  // of the sequence
  int first_row;    // of the tile, counted from the sequence's first
  int num_rows;     // of the sequence

  template <int kRows>
  __device__ int LastRow() const {
    return min(first_row + kRows, num_rows) - 1;
  }
  // Of a row, counted from the sequence's first.
  __device__ int Token(const AttentionParams& p, int row) const {
    return first_token + row / p.group;
  }
  __device__ int Head(const AttentionParams& p, int kv_head, int row) const {
    return kv_head * p.group + row % p.group;
  }
  // Below all that exist for rows that don't.
  __device__ int Position(const AttentionParams& p, int row) const {
    return row < num_rows ? p.positions[Token(p, row)] : -1;
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
  if (tile.first_row >= tile.num_rows || p.context_lens[tile.seq] == 0) return false;
  return tile.Token(p, tile.first_row) < p.end_token &&
         tile.Token(p, tile.LastRow<kRows>()) >= p.first_token;
}

}  // namespace lockstep::cuda
