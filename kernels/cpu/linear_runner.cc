#include "kernels/cpu/linear_runner.h"

#include <algorithm>
#include <bit>

#include "kernels/base/check.h"
#include "kernels/cpu/linear_shape.h"

namespace lockstep::cpu {
namespace {

constexpr int64_t kBatchRows = 512;         // packed at a time: 8 MiB of bf16 for 8192 in_features
constexpr int64_t kBlockK = 256;            // rows of a panel that stay in the first-level cache
constexpr int64_t kBlockBytes = 128 << 10;  // of rows, in the second-level cache
constexpr int64_t kMaxBlockRows = kBlockBytes / (kBlockK * 2);
constexpr int kMaxBlockColumns = 256;
constexpr int64_t kLevelFloats = kMaxBlockRows * kMaxBlockColumns;
// Elements of x that are worth a loop of their own over all threads.
constexpr int64_t kPackTogether = 64 << 10;

}  // namespace

// A batch of rows times the weight, cut into blocks of (row tiles) x (panels).
//
// Packed rows: K-slice after K-slice, block of k after block of k, each [num_tiles][block_k][rows
// of the tile], so that what a task reads together lies together.
struct LinearRunner::Product {
  const PackedWeight& weight;
  const float* x;
  int64_t num_rows;
  float* y;
  char* packed;
  int64_t bytes_per_element;  // of packed
  int64_t tile_rows;
  int64_t num_tiles;
  int64_t block_k;
  int64_t block_tiles;
  int64_t block_panels;
  int64_t group_panels;  // of a block, that go through the slices together
  int64_t num_row_blocks;
  int64_t num_panel_blocks;

  int64_t RowsOf(int64_t tile) const { return std::min(tile_rows, num_rows - tile * tile_rows); }
  // What is read when the part's panels have been read up to padded k.
  const char* NextPanel(const Part& part, int64_t k) const {
    if (k < weight.padded_k()) return weight.PanelAt(part.first_panel, k);
    const int64_t panel = part.first_panel + part.num_panels;
    return panel + part.num_panels <= weight.num_panels() ? weight.PanelAt(panel, 0) : nullptr;
  }
  // Of the run that begins at padded k and has num_k elements.
  char* PackedTile(int64_t tile, int64_t k, int64_t num_k) const {
    return packed + (k * num_rows + tile * tile_rows * num_k) * bytes_per_element;
  }
};

LinearRunner::LinearRunner(const VectorKernels& kernels, ThreadPool& pool)
    : kernels_(kernels), pool_(pool) {
  for (int i = 0; i < pool.num_threads(); ++i) {
    auto buffer = AllocateHost(kMaxTreeLevels * kLevelFloats * static_cast<int64_t>(sizeof(float)));
    LS_CHECK(buffer.ok()) << buffer.status();
    partial_.push_back(*std::move(buffer));
  }
}

void LinearRunner::Run(const PackedWeight& weight, const float* x, int64_t num_tokens, float* y) {
  if (num_tokens == 0) return;
  const int64_t batch = CeilDiv(num_tokens, CeilDiv(num_tokens, kBatchRows));
  for (int64_t row = 0; row < num_tokens; row += batch) {
    RunBatch(weight, x + row * weight.shape().in_features, std::min(batch, num_tokens - row),
             y + row * weight.shape().out_features);
  }
}

void LinearRunner::RunBatch(const PackedWeight& weight, const float* x, int64_t num_rows,
                            float* y) {
  Product product = Plan(weight, x, num_rows, y);
  PackRows(product);
  pool_.ParallelFor(product.num_row_blocks * product.num_panel_blocks,
                    [&](int64_t block, int thread) { ComputeBlock(product, block, thread); });
}

LinearRunner::Product LinearRunner::Plan(const PackedWeight& weight, const float* x,
                                         int64_t num_rows, float* y) const {
  Product product = {weight, x, num_rows, y, nullptr, 4, 0, 0, 0, 0, 0, 0, 0, 0};
  if (weight.bf16() && kernels_.pairs_as_bf16) product.bytes_per_element = 2;
  product.num_tiles = CeilDiv(num_rows, kernels_.tile_rows);
  product.tile_rows = CeilDiv(num_rows, product.num_tiles);  // 4 + 3 rather than 6 + 1
  product.num_tiles = CeilDiv(num_rows, product.tile_rows);
  // A single tile has nothing to come back to a block of k for.
  product.block_k = product.num_tiles == 1 ? weight.padded_slice_k() : kBlockK;
  const int64_t block_rows = kBlockBytes / (kBlockK * product.bytes_per_element);
  product.num_row_blocks = CeilDiv(product.num_tiles, block_rows / product.tile_rows);
  product.block_tiles = CeilDiv(product.num_tiles, product.num_row_blocks);
  product.num_row_blocks = CeilDiv(product.num_tiles, product.block_tiles);
  // Every thread wants several blocks.
  const int64_t share =
      weight.num_panels() * product.num_row_blocks / (kBlocksPerThread * pool_.num_threads());
  product.block_panels = std::max<int64_t>(share / 2 * 2, 2);
  if (product.num_tiles == 1) {
    // Each panel is a stream of its own, read once from end to end.
    product.group_panels = num_rows <= kernels_.two_panel_rows ? 2 : 1;
  } else {
    // Panels of a block share a visit to its rows.
    product.block_panels =
        std::min<int64_t>(product.block_panels, kMaxBlockColumns / weight.panel_columns());
    product.group_panels = product.block_panels;
  }
  product.num_panel_blocks = CeilDiv(weight.num_panels(), product.block_panels);
  return product;
}

void LinearRunner::PackRows(Product& product) {
  const int64_t elements = product.num_rows * product.weight.padded_k();
  product.packed = static_cast<char*>(rows_.Reserve(elements * product.bytes_per_element));
  if (elements > kPackTogether) {
    pool_.ParallelFor(product.num_tiles, [&](int64_t tile, int) { PackTile(product, tile); });
  } else {
    for (int64_t tile = 0; tile < product.num_tiles; ++tile) PackTile(product, tile);
  }
}

void LinearRunner::PackTile(const Product& product, int64_t tile) const {
  const PackedWeight& weight = product.weight;
  const int64_t in_features = weight.shape().in_features;
  const auto pack = weight.bf16() ? kernels_.pack_bf16 : kernels_.pack_f32;
  const float* x = product.x + tile * product.tile_rows * in_features;
  for (int64_t slice = 0; slice < weight.shape().num_k_slices; ++slice) {
    for (int64_t k = 0; k < weight.slice_k(); k += product.block_k) {
      const int64_t num_k = std::min(product.block_k, weight.slice_k() - k);
      const int64_t padded = std::min(product.block_k, weight.padded_slice_k() - k);
      pack(x + slice * weight.slice_k() + k, in_features, static_cast<int>(product.RowsOf(tile)),
           num_k, product.PackedTile(tile, slice * weight.padded_slice_k() + k, padded));
    }
  }
}

void LinearRunner::ComputeBlock(const Product& product, int64_t index, int thread) {
  const int64_t first_tile = index % product.num_row_blocks * product.block_tiles;
  const int64_t begin = index / product.num_row_blocks * product.block_panels;
  const int64_t end = std::min(begin + product.block_panels, product.weight.num_panels());
  for (int64_t panel = begin; panel < end; panel += product.group_panels) {
    const int64_t num_panels = std::min(product.group_panels, end - panel);
    ComputePanels(product, {first_tile, panel, num_panels},
                  partial_[static_cast<size_t>(thread)].as<float>());
  }
}

void LinearRunner::ComputePanels(const Product& product, const Part& part, float* partial) const {
  const PackedWeight& weight = product.weight;
  const int64_t first_row = part.first_tile * product.tile_rows;
  const int64_t first_column = part.first_panel * weight.panel_columns();
  const int64_t out_features = weight.shape().out_features;
  GemmBlock block = {};
  block.tile_rows = static_cast<int>(product.tile_rows);
  block.num_rows = static_cast<int>(
      std::min(product.block_tiles * product.tile_rows, product.num_rows - first_row));
  block.panel_stride_bytes = weight.panel_bytes();
  block.num_panels = static_cast<int>(part.num_panels);
  block.c = partial;
  block.c_panel_stride = kMaxBlockRows * weight.panel_columns();
  block.merge_stride = kLevelFloats;
  block.out = product.y + first_row * out_features + first_column;
  block.out_stride = out_features;
  block.out_columns = out_features - first_column;
  for (int slice = 0; slice < weight.shape().num_k_slices; ++slice) {
    AccumulateSlice(product, part, slice, block);
  }
}

// Partial sums are a stack, one level per complete subtree: a slice becomes the top, and after
// slice s as many subtrees end as s + 1 has trailing zero bits; the last slice ends all.
void LinearRunner::AccumulateSlice(const Product& product, const Part& part, int slice,
                                   GemmBlock block) const {
  const PackedWeight& weight = product.weight;
  const int64_t begin = slice * weight.padded_slice_k();
  const int64_t end = begin + weight.padded_slice_k();
  const bool last_slice = slice == weight.shape().num_k_slices - 1;
  const int depth = std::popcount(static_cast<unsigned>(slice));
  const int merges = last_slice ? depth : std::countr_one(static_cast<unsigned>(slice));
  float* const out = last_slice ? block.out : nullptr;
  block.c += depth * kLevelFloats;
  for (int64_t k = begin, next = 0; k < end; k = next) {
    next = std::min(k + product.block_k, end);
    block.num_k = next - k;
    block.rows = product.PackedTile(part.first_tile, k, block.num_k);
    block.tile_stride_bytes = product.tile_rows * block.num_k * product.bytes_per_element;
    block.panels = weight.PanelAt(part.first_panel, k);
    block.next_panel = product.NextPanel(part, next);
    block.fresh = k == begin;
    block.num_merges = next == end ? merges : 0;
    block.out = next == end ? out : nullptr;
    (weight.bf16() ? kernels_.gemm_bf16 : kernels_.gemm_f32)(block);
  }
}

}  // namespace lockstep::cpu
