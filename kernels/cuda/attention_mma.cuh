// Attention over bf16 caches with matrix instructions, for prefill chunks and decodes alike.
//
// The query tokens of a sequence and the heads of one KV head's group are the rows of one matrix,
// row = token * group + head, so that keys and values are read once for the whole group. A block
// takes 16 rows to each of its kRowWarps and walks one split of their context in tiles of
// kAttentionTile tokens (FlashAttention-2, Dao 2023, section 3.1). Where there are few rows, as in
// a decode, kColumnWarps warps share the same rows: each computes all their scores, which is
// cheaper than to exchange them, and its own columns of the result.
//
// A row's arithmetic does not depend on either number, nor on the other rows of its tile: its
// result is the same bits in any batch with the same split_tokens. (Finite keys and values assumed:
// what comes later in the sequence enters with a weight of zero.)
//
// Work: 4 head_dim operations to a row and token. Decode reads 4 head_dim bytes to a token of
// context for `group` rows, far below what the matrix units could do: bound by memory. A tile of 64
// rows reads the same bytes from the second-level cache for 64 rows: bound by matrix instructions,
// and by shared memory, from which every warp reads all of K and V for its 16 rows: 32 head_dim
// operations to 4 head_dim bytes, of which a multiprocessor delivers 128 a cycle.
#pragma once

#include "kernels/cuda/kv_tiles.cuh"

namespace lockstep::cuda {

constexpr int kWarpRows = 16;  // of a matrix instruction

// A row of a tile in the hands of a lane.
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

  __device__ int Position(const AttentionParams& p, int row) const {
    return p.positions[first_token + row / p.group];
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
    tile.seq = number / tiles;
    within = number % tiles;
  } else {
    const auto start = [&](int seq) { return p.query_starts[seq] * p.group / kRows + seq; };
    tile.seq = LastNotAbove(p.num_seqs, number, start);
    within = number - start(tile.seq);
  }
  tile.first_token = p.query_starts[tile.seq];
  tile.first_row = within * kRows;
  tile.num_rows = (p.query_starts[tile.seq + 1] - tile.first_token) * p.group;
  return tile.first_row < tile.num_rows && p.context_lens[tile.seq] > 0;
}

// The 16 rows of one warp: queries, softmax and the warp's columns of the result. A lane holds what
// MmaBf16 gives it: of rows g = lane / 4 and g + 8, columns 2 (lane % 4) and the next of each 8.
template <int kDim, int kColumns>
class WarpRows {
 public:
  __device__ WarpRows(const AttentionParams& p, const TileRow& upper, const TileRow& lower)
      : scale_log2_(p.scale_log2) {
    LoadQuery<0>(p, upper);
    LoadQuery<1>(p, lower);
  }

  // `keys` and `values` hold positions begin..; a row sees those up to its own.
  __device__ void Walk(const uint4* keys, const uint4* values, int begin, const int (&positions)[2],
                       bool masked, int first_column) {
    float scores[kScoreTiles][4];
    Score(keys, scores);
    if (masked) Mask(scores, begin, positions);
    uint32_t weights[kTokenSteps][4];
    Soften(scores, weights);
    AddValues(values, weights, first_column);
  }

  // Of weights; half 0: row g, half 1: row g + 8. All lanes together.
  __device__ float Sum(int half) const { return QuadSum(sum_[half]); }
  __device__ void Write(const RowResult& result, int half, float sum, int first_column,
                        int head_dim) const {
    const int lane = threadIdx.x % kWarpSize;
    if (first_column == 0 && lane % 4 == 0) result.WriteStats(max_[half], sum);
    const float scale = result.Scale(sum);
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      const int d = first_column + j * 8;
      if (d >= head_dim) continue;
      result.WritePair(d + lane % 4 * 2, values_[j][half * 2] * scale,
                       values_[j][half * 2 + 1] * scale);
    }
  }

 private:
  static constexpr int kScoreTiles = static_cast<int>(kAttentionTile) / 8;
  static constexpr int kTokenSteps = static_cast<int>(kAttentionTile) / 16;
  using Tile = SharedTile<kDim>;

  template <int half>
  __device__ void LoadQuery(const AttentionParams& p, const TileRow& row) {
    const int column = threadIdx.x % 4 * 2;
    const float* q = row.Exists() ? QueryRow(p, row.token, row.head) : nullptr;
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
      float2 pair = make_float2(0.0f, 0.0f);
      if (q != nullptr && i * 8 < p.head_dim) {
        pair = *reinterpret_cast<const float2*>(q + i * 8 + column);
      }
      query_[i / 2][i % 2 * 2 + half] = PackBf16(pair.x, pair.y);
    }
  }

  // Scores before scaling, of tokens 8 j + column.
  __device__ void Score(const uint4* keys, float (&scores)[kScoreTiles][4]) const {
    const int lane = threadIdx.x % kWarpSize;
    const int token = lane / 16 * 8 + lane % 8;  // matrices: tokens 0-7 (two chunks), tokens 8-15
    const int flip = lane / 8 % 2 ^ Tile::Flip(token);
#pragma unroll
    for (int j = 0; j < kScoreTiles; ++j)
      scores[j][0] = scores[j][1] = scores[j][2] = scores[j][3] = 0.0f;
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
      for (int j = 0; j < kScoreTiles; j += 2) {
        uint32_t k[4];
        LoadMatrix4(k, keys + (j * 8 + token) * Tile::kChunks + (step * 2 ^ flip));
        MmaBf16(scores[j], query_[step], {k[0], k[1]});
        MmaBf16(scores[j + 1], query_[step], {k[2], k[3]});
      }
    }
  }

  __device__ static void Mask(float (&scores)[kScoreTiles][4], int begin,
                              const int (&positions)[2]) {
    const int column = begin + threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < kScoreTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (column + j * 8 + i % 2 > positions[i / 2]) scores[j][i] = -INFINITY;
      }
    }
  }

  // Scores become weights relative to the rows' new maxima; what was summed so far is rescaled.
  __device__ void Soften(float (&scores)[kScoreTiles][4], uint32_t (&weights)[kTokenSteps][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float tile_max = -INFINITY;
#pragma unroll
      for (int j = 0; j < kScoreTiles; ++j) {
        tile_max = fmaxf(tile_max, fmaxf(scores[j][half * 2], scores[j][half * 2 + 1]));
      }
      const float max = fmaxf(max_[half], QuadMax(tile_max) * scale_log2_);
      const float base = max == -INFINITY ? 0.0f : max;  // no token of the split seen so far
      Rescale(half, exp2f(max_[half] - base));
      max_[half] = max;
#pragma unroll
      for (int j = 0; j < kScoreTiles; ++j) {
        const float first = exp2f(fmaf(scores[j][half * 2], scale_log2_, -base));
        const float second = exp2f(fmaf(scores[j][half * 2 + 1], scale_log2_, -base));
        sum_[half] += first + second;
        weights[j / 2][j % 2 * 2 + half] = PackBf16(first, second);
      }
    }
  }

  __device__ void Rescale(int half, float factor) {
    sum_[half] *= factor;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      values_[j][half * 2] *= factor;
      values_[j][half * 2 + 1] *= factor;
    }
  }

  __device__ void AddValues(const uint4* values, const uint32_t (&weights)[kTokenSteps][4],
                            int first_column) {
    const int lane = threadIdx.x % kWarpSize;
    const int token = lane % 16;  // matrices: tokens 0-7, 8-15 of a chunk, then of the next
    const int flip = (first_column / kChunkElements + lane / 16) ^ Tile::Flip(token);
#pragma unroll
    for (int step = 0; step < kTokenSteps; ++step) {
#pragma unroll
      for (int j = 0; j < kColumns / 8; j += 2) {
        uint32_t v[4];
        LoadMatrix4Transposed(v, values + (step * 16 + token) * Tile::kChunks + (j ^ flip));
        MmaBf16(values_[j], weights[step], {v[0], v[1]});
        MmaBf16(values_[j + 1], weights[step], {v[2], v[3]});
      }
    }
  }

  // Over the four lanes that share a row.
  __device__ static float QuadMax(float x) {
    x = fmaxf(x, __shfl_xor_sync(kWholeWarp, x, 1));
    return fmaxf(x, __shfl_xor_sync(kWholeWarp, x, 2));
  }
  __device__ static float QuadSum(float x) {
    x += __shfl_xor_sync(kWholeWarp, x, 1);
    return x + __shfl_xor_sync(kWholeWarp, x, 2);
  }

  float scale_log2_;
  uint32_t query_[kDim / 16][4];
  float values_[kColumns / 8][4] = {};
  float max_[2] = {-INFINITY, -INFINITY};  // log2
  float sum_[2] = {};                      // this lane's share
};

// kBlocks to a multiprocessor at least: what bounds the registers.
template <int kDim, int kRowWarps, int kColumnWarps, int kBlocks>
struct MmaShape {
  static constexpr int kHeadDim = kDim;
  static constexpr int kRowWarpsOf = kRowWarps;
  static constexpr int kThreads = kRowWarps * kColumnWarps * kWarpSize;
  static constexpr int kRows = kRowWarps * kWarpRows;
  static constexpr int kColumns = kDim / kColumnWarps;  // of a warp's result
  static constexpr int kBlocksPerMultiprocessor = kBlocks;
  using Tiles = KvTiles<kDim, kRowWarps * kColumnWarps, 2>;
  using Rows = WarpRows<kDim, kColumns>;
};

template <typename Shape>
__device__ void WriteRow(const AttentionParams& p, const typename Shape::Rows& rows, int half,
                         const TileRow& row, int split, int first_column) {
  const float sum = rows.Sum(half);
  if (!row.Exists() || row.position < split * p.split_tokens) return;
  const RowResult result(p, row.token, row.head, split, row.position < p.split_tokens);
  rows.Write(result, half, sum, first_column, p.head_dim);
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksPerMultiprocessor)
    AttentionMmaKernel(AttentionParams p) {
  RowTile tile;
  if (!FindRowTile<Shape::kRows>(p, tile)) return;
  const int last_row = min(tile.first_row + Shape::kRows, tile.num_rows) - 1;
  const int split = static_cast<int>(blockIdx.z);
  const int first = split * p.split_tokens;
  const int end = min(first + p.split_tokens, tile.Position(p, last_row) + 1);
  if (first >= end) return;

  const int kv_head = static_cast<int>(blockIdx.y);
  typename Shape::Tiles tiles(p, tile.seq, kv_head, first, end);
  tiles.IssueNext();
  const int warp = threadIdx.x / kWarpSize;
  const int first_column = warp / Shape::kRowWarpsOf * Shape::kColumns;
  const int row = tile.first_row + warp % Shape::kRowWarpsOf * kWarpRows +
                  static_cast<int>(threadIdx.x) % kWarpSize / 4;
  const TileRow upper(p, tile.first_token, kv_head, row, tile.num_rows);
  const TileRow lower(p, tile.first_token, kv_head, row + 8, tile.num_rows);
  const int positions[2] = {upper.position, lower.position};
  const int seen_by_all = tile.Position(p, tile.first_row) + 1;
  typename Shape::Rows rows(p, upper, lower);
  constexpr int kTile = static_cast<int>(kAttentionTile);
  for (int begin = first; begin < end; begin += kTile) {
    const uint4* keys = tiles.Take();
    tiles.IssueNext();
    rows.Walk(keys, tiles.ValuesOf(keys), begin, positions, begin + kTile > seen_by_all,
              first_column);
  }
  WriteRow<Shape>(p, rows, 0, upper, split, first_column);
  WriteRow<Shape>(p, rows, 1, lower, split, first_column);
}

}  // namespace lockstep::cuda
