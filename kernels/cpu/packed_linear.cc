#include "kernels/cpu/packed_linear.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/flush_denormals.h"
#include "kernels/cpu/linear_shape.h"
#include "kernels/cpu/pack_rows.h"

namespace lockstep::cpu {
namespace {

constexpr int kMaxBlockColumns = 128;
constexpr int kMaxBlockRows =
    96;  // rows of x that stay in the second-level cache for one block of k
constexpr int64_t kBlockK = 256;    // rows of a panel that stay in the first-level cache
constexpr int kMaxTreeLevels = 12;  // log2(kMaxKSlices) + 2
constexpr int64_t kLevelFloats = int64_t{kMaxBlockRows} * kMaxBlockColumns;
constexpr int kBlocksPerThread = 8;  // evens out threads that the system runs unequally
static_assert((1 << (kMaxTreeLevels - 2)) >= kMaxKSlices);

int64_t CeilDiv(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

}  // namespace

absl::StatusOr<std::unique_ptr<PackedWeight>> PackedWeight::Allocate(const LinearShape& shape,
                                                                     int panel_columns) {
  RETURN_IF_ERROR(CheckLinearShape(shape));
  auto weight = std::unique_ptr<PackedWeight>(new PackedWeight(shape, panel_columns));
  const int64_t columns = weight->num_panels() * panel_columns;  // at most 2^32, as padded_k
  if (columns > (INT64_MAX >> 4) / weight->padded_k()) {
    return absl::ResourceExhaustedError("linear weight: larger than any memory");
  }
  ASSIGN_OR_RETURN(weight->buffer_,
                   AllocateHost(columns * weight->padded_k() * DTypeBytes(shape.dtype)));
  return weight;
}

void PackedWeight::Fill(int64_t first_row, const HostRows& rows) {
  CheckHostRows(shape(), first_row, rows);
  for (int64_t done = 0; done < rows.num_rows;) {
    const int64_t column = (first_row + done) % panel_columns_;
    const int64_t panel = (first_row + done) / panel_columns_;
    const int64_t count = std::min(rows.num_rows - done, panel_columns_ - column);
    for (int64_t slice = 0; slice < shape().num_k_slices; ++slice) {
      for (int64_t k = 0; k < slice_k(); k += kPackChunk) {
        const int64_t begin = slice * slice_k() + k;
        const PackChunk chunk = {done, count, begin, begin + std::min(kPackChunk, slice_k() - k)};
        char* line = const_cast<char*>(PanelAt(panel, slice * padded_slice_k() + k));
        PackRows(rows, chunk, shape().dtype, panel_columns_,
                 line + column * 4);  // a pair of bf16 is as wide as an f32
      }
    }
    done += count;
  }
}

// One call of Run, cut into blocks of (row tiles) x (panels).
struct LinearRunner::Product {
  const PackedWeight& weight;
  const float* x;
  int64_t num_tokens;
  float* y;
  char* packed;               // [num_tiles][padded_k][rows of the tile]
  int64_t bytes_per_element;  // of packed
  int64_t tile_rows;
  int64_t num_tiles;
  int64_t block_tiles;
  int64_t block_panels;
  int64_t num_row_blocks;
  int64_t num_panel_blocks;

  int RowsOf(int64_t tile) const {
    return static_cast<int>(std::min(tile_rows, num_tokens - tile * tile_rows));
  }
  int64_t tile_bytes() const { return tile_rows * weight.padded_k() * bytes_per_element; }
};

LinearRunner::LinearRunner(const VectorKernels& kernels, ThreadPool& pool)
    : kernels_(kernels), pool_(pool) {
  for (int i = 0; i < pool.num_threads(); ++i) {
    auto buffer = AllocateHost(kMaxTreeLevels * kLevelFloats * static_cast<int64_t>(sizeof(float)));
    LS_CHECK(buffer.ok()) << buffer.status();
    partial_.push_back(*std::move(buffer));
  }
}

LinearRunner::Product LinearRunner::Plan(const PackedWeight& weight, const float* x,
                                         int64_t num_tokens, float* y) const {
  Product product = {weight, x, num_tokens, y, nullptr, 4, 0, 0, 0, 0, 0, 0};
  if (weight.bf16() && kernels_.pairs_as_bf16) product.bytes_per_element = 2;
  product.num_tiles = CeilDiv(num_tokens, kernels_.tile_rows);
  product.tile_rows = CeilDiv(num_tokens, product.num_tiles);  // 4 + 3 rather than 6 + 1
  product.num_tiles = CeilDiv(num_tokens, product.tile_rows);
  product.num_row_blocks = CeilDiv(product.num_tiles, kMaxBlockRows / product.tile_rows);
  product.block_tiles = CeilDiv(product.num_tiles, product.num_row_blocks);
  product.num_row_blocks = CeilDiv(product.num_tiles, product.block_tiles);
  // Panels of a block share a visit to its rows, and two at a time the registers; but every thread
  // wants several blocks.
  const int64_t share =
      weight.num_panels() * product.num_row_blocks / (kBlocksPerThread * pool_.num_threads());
  product.block_panels =
      std::clamp<int64_t>(share / 2 * 2, 2, kMaxBlockColumns / weight.panel_columns());
  product.num_panel_blocks = CeilDiv(weight.num_panels(), product.block_panels);
  return product;
}

void LinearRunner::Run(const PackedWeight& weight, const float* x, int64_t num_tokens, float* y) {
  if (num_tokens == 0) return;
  Product product = Plan(weight, x, num_tokens, y);
  product.packed = static_cast<char*>(rows_.Reserve(product.num_tiles * product.tile_bytes()));
  if (product.num_tiles == 1) {
    PackTile(product, 0);
  } else {
    pool_.ParallelFor(product.num_tiles, [&](int64_t tile, int) { PackTile(product, tile); });
  }
  pool_.ParallelFor(product.num_row_blocks * product.num_panel_blocks,
                    [&](int64_t block, int thread) { ComputeBlock(product, block, thread); });
}

void LinearRunner::PackTile(const Product& product, int64_t tile) {
  const PackedWeight& weight = product.weight;
  const int64_t in_features = weight.shape().in_features;
  const int rows = product.RowsOf(tile);
  const auto pack = weight.bf16() ? kernels_.pack_bf16 : kernels_.pack_f32;
  char* out = product.packed + tile * product.tile_bytes();
  const float* x = product.x + tile * product.tile_rows * in_features;
  for (int slice = 0; slice < weight.shape().num_k_slices; ++slice) {
    pack(x + slice * weight.slice_k(), in_features, rows, weight.slice_k(),
         out + slice * weight.padded_slice_k() * rows * product.bytes_per_element);
  }
}

// block.c = one K-slice's share of the block.
void LinearRunner::AccumulateSlice(const Product& product, const GemmBlock& block,
                                   int64_t first_panel, int slice) const {
  const PackedWeight& weight = product.weight;
  std::optional<FlushDenormals> flush;
  if (weight.bf16()) flush.emplace();
  const int64_t slice_begin = slice * weight.padded_slice_k();
  const int64_t end = slice_begin + weight.padded_slice_k();
  const bool one_sweep =
      block.num_rows <= block.tile_rows;  // nothing to come back to a block of k for
  const int64_t block_k = one_sweep ? weight.padded_slice_k() : kBlockK;
  GemmBlock part = block;
  for (int64_t k = slice_begin; k < end; k += block_k) {
    part.first_k = k;
    part.num_k = std::min(block_k, end - k);
    part.panels = weight.PanelAt(first_panel, k);
    part.fresh = k == slice_begin;
    part.next_panel = k + block_k < end ? weight.PanelAt(first_panel, k + block_k) : nullptr;
    (weight.bf16() ? kernels_.gemm_bf16 : kernels_.gemm_f32)(part);
  }
}

void LinearRunner::AddPanels(float* left, const float* right, const GemmBlock& block) const {
  for (int p = 0; p < block.num_panels; ++p) {
    const int64_t at = p * block.c_panel_stride;
    kernels_.add(left + at, right + at, int64_t{block.num_rows} * kernels_.panel_columns);
  }
}

void LinearRunner::ComputeBlock(const Product& product, int64_t index, int thread) {
  // Panels vary fastest: threads that work side by side share the packed rows in the third-level
  // cache.
  const PackedWeight& weight = product.weight;
  const int64_t first_tile = index / product.num_panel_blocks * product.block_tiles;
  const int64_t first_panel = index % product.num_panel_blocks * product.block_panels;
  const int64_t first_row = first_tile * product.tile_rows;
  const int64_t columns = weight.panel_columns();
  GemmBlock block = {};
  block.rows = product.packed + first_tile * product.tile_bytes();
  block.tile_stride_bytes = product.tile_bytes();
  block.tile_rows = static_cast<int>(product.tile_rows);
  block.num_rows = static_cast<int>(
      std::min(product.block_tiles * product.tile_rows, product.num_tokens - first_row));
  block.panel_stride_bytes = weight.panel_bytes();
  block.num_panels =
      static_cast<int>(std::min(product.block_panels, weight.num_panels() - first_panel));
  block.c_panel_stride = kMaxBlockRows * columns;

  // A stack of partial sums: after slice s, as many subtrees are complete as s + 1 has trailing
  // zero bits.
  float* stack = partial_[thread].as<float>();
  float* top = stack;
  for (int slice = 0; slice < weight.shape().num_k_slices; ++slice) {
    if (slice > 0) top += kLevelFloats;
    block.c = top;
    AccumulateSlice(product, block, first_panel, slice);
    for (int merges = std::countr_one(static_cast<unsigned>(slice)); merges > 0; --merges) {
      AddPanels(top - kLevelFloats, top, block);
      top -= kLevelFloats;
    }
  }
  for (; top > stack; top -= kLevelFloats) AddPanels(top - kLevelFloats, top, block);

  const int64_t out_features = weight.shape().out_features;
  for (int p = 0; p < block.num_panels; ++p) {
    const int64_t column = (first_panel + p) * columns;
    const int64_t count = std::min(columns, out_features - column);
    const float* c = stack + p * block.c_panel_stride;
    for (int r = 0; r < block.num_rows; ++r) {
      std::copy_n(c + r * columns, count, product.y + (first_row + r) * out_features + column);
    }
  }
}

}  // namespace lockstep::cpu
