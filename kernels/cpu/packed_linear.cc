#include "kernels/cpu/packed_linear.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/flush_denormals.h"
#include "kernels/cpu/linear_shape.h"

namespace lockstep::cpu {
namespace {

constexpr int kMaxBlockPanels = 4;
constexpr int kMaxBlockRows =
    96;  // rows of x that stay in the second-level cache for one block of k
constexpr int64_t kBlockK = 256;    // rows of a panel that stay in the first-level cache
constexpr int kMaxTreeLevels = 12;  // log2(kMaxKSlices) + 2
constexpr int64_t kPanelFloats = int64_t{kMaxBlockRows} * kPanelColumns;
constexpr int64_t kLevelFloats = kPanelFloats * kMaxBlockPanels;
constexpr int64_t kPackRowsChunk =
    256;  // elements of k packed for all rows of a panel before going on
static_assert((1 << (kMaxTreeLevels - 2)) >= kMaxKSlices);

uint32_t ElementBits(const void* row, DType from, DType to, int64_t k) {
  const float value = HostElement(row, from, k);
  return to == DType::kF32 ? std::bit_cast<uint32_t>(value) : ToBF16(value).bits;
}

// Rows [0, num_rows) of one panel, elements [k0, k1) of one K-slice. base: the slice's place in the
// panel.
template <DType kTo>
void PackChunk(const HostRows& rows, int64_t first, int64_t num_rows, int64_t slice_begin,
               int64_t k0, int64_t k1, int64_t column, char* base) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const char* row = static_cast<const char*>(rows.data) + (first + r) * rows.row_stride_bytes;
    for (int64_t k = k0; k < k1; ++k) {
      if constexpr (kTo == DType::kF32) {
        const uint32_t bits = ElementBits(row, rows.dtype, kTo, slice_begin + k);
        std::memcpy(base + (k * kPanelColumns + column + r) * 4, &bits, 4);
      } else {
        const auto bits = static_cast<uint16_t>(ElementBits(row, rows.dtype, kTo, slice_begin + k));
        std::memcpy(base + ((k / 2 * kPanelColumns + column + r) * 2 + k % 2) * 2, &bits, 2);
      }
    }
  }
}

void AddPanels(float* left, const float* right, int num_rows, int num_panels,
               const VectorKernels& kernels) {
  for (int p = 0; p < num_panels; ++p) {
    kernels.add(left + p * kPanelFloats, right + p * kPanelFloats,
                int64_t{num_rows} * kPanelColumns);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<PackedWeight>> PackedWeight::Allocate(const LinearShape& shape) {
  RETURN_IF_ERROR(CheckLinearShape(shape));
  auto weight = std::unique_ptr<PackedWeight>(new PackedWeight(shape, DeviceBuffer()));
  const int64_t rows =
      weight->num_panels() * kPanelColumns;  // < 2^32, as padded_k: no overflow below 2^63 / 4
  if (rows > (INT64_MAX >> 4) / weight->padded_k()) {
    return absl::ResourceExhaustedError("linear weight: larger than any memory");
  }
  ASSIGN_OR_RETURN(weight->buffer_,
                   AllocateHost(rows * weight->padded_k() * DTypeBytes(shape.dtype)));
  return weight;
}

void PackedWeight::Fill(int64_t first_row, const HostRows& rows) {
  CheckHostRows(shape(), first_row, rows);
  for (int64_t done = 0; done < rows.num_rows;) {
    const int64_t column = (first_row + done) % kPanelColumns;
    const int64_t panel = (first_row + done) / kPanelColumns;
    const int64_t count = std::min(rows.num_rows - done, kPanelColumns - column);
    for (int64_t slice = 0; slice < shape().num_k_slices; ++slice) {
      char* base = const_cast<char*>(PanelAt(panel, slice * padded_slice_k()));
      for (int64_t k = 0; k < slice_k(); k += kPackRowsChunk) {
        const int64_t end = std::min(k + kPackRowsChunk, slice_k());
        const auto pack = bf16() ? PackChunk<DType::kBF16> : PackChunk<DType::kF32>;
        pack(rows, done, count, slice * slice_k(), k, end, column, base);
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
  char* packed;             // [num_tiles][padded_k][tile_rows]
  int64_t bytes_per_row_k;  // of a packed element
  int tile_rows;
  int64_t num_tiles;
  int64_t block_tiles;
  int64_t block_panels;
  int64_t num_row_blocks;
  int64_t num_panel_blocks;

  int RowsOf(int64_t tile) const {
    return static_cast<int>(std::min<int64_t>(tile_rows, num_tokens - tile * tile_rows));
  }
  int64_t TileBytes() const { return tile_rows * weight.padded_k() * bytes_per_row_k; }
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
  const int64_t tile_rows = kernels_.tile_rows;
  const int64_t num_tiles = (num_tokens + tile_rows - 1) / tile_rows;
  const int64_t max_tiles = kMaxBlockRows / tile_rows;
  const int64_t num_row_blocks = (num_tiles + max_tiles - 1) / max_tiles;
  const int64_t block_tiles = (num_tiles + num_row_blocks - 1) / num_row_blocks;
  // Few tokens: panels one by one keep the threads evenly busy. Many: a block of panels shares a
  // visit to its rows.
  const int64_t wanted_blocks = 8 * pool_.num_threads();
  const int64_t block_panels =
      num_tokens <= kernels_.streaming_rows
          ? 1
          : std::clamp<int64_t>(weight.num_panels() * num_row_blocks / wanted_blocks, 1,
                                kMaxBlockPanels);
  const bool pairs = weight.bf16() && kernels_.pairs_as_bf16;
  Product product = {weight,
                     x,
                     num_tokens,
                     y,
                     nullptr,
                     pairs ? 2 : 4,
                     static_cast<int>(tile_rows),
                     num_tiles,
                     block_tiles,
                     block_panels,
                     num_row_blocks,
                     (weight.num_panels() + block_panels - 1) / block_panels};
  product.packed = static_cast<char*>(rows_.Reserve(num_tiles * product.TileBytes()));

  if (num_tiles == 1) {
    PackTile(product, 0);
  } else {
    pool_.ParallelFor(num_tiles, [&](int64_t tile, int) { PackTile(product, tile); });
  }
  pool_.ParallelFor(product.num_row_blocks * product.num_panel_blocks,
                    [&](int64_t block, int thread) { ComputeBlock(product, block, thread); });
}

void LinearRunner::PackTile(const Product& product, int64_t tile) {
  const PackedWeight& weight = product.weight;
  const int64_t in_features = weight.shape().in_features;
  const int rows = product.RowsOf(tile);
  const auto pack = weight.bf16() ? kernels_.pack_bf16 : kernels_.pack_f32;
  char* out = product.packed + tile * product.TileBytes();
  const float* x = product.x + tile * product.tile_rows * in_features;
  for (int slice = 0; slice < weight.shape().num_k_slices; ++slice) {
    pack(x + slice * weight.slice_k(), in_features, rows, weight.slice_k(),
         out + slice * weight.padded_slice_k() * rows * product.bytes_per_row_k);
  }
}

// c: [num_panels][kMaxBlockRows][32] = one K-slice's share of the block.
void LinearRunner::AccumulateSlice(const Product& product, int64_t first_tile, int64_t first_panel,
                                   int num_panels, int slice, float* c) const {
  const PackedWeight& weight = product.weight;
  const int64_t end_tile = std::min(first_tile + product.block_tiles, product.num_tiles);
  const int64_t end_row = std::min(end_tile * product.tile_rows, product.num_tokens);
  const auto num_rows = static_cast<int>(end_row - first_tile * product.tile_rows);
  const int64_t slice_begin = slice * weight.padded_slice_k();
  std::optional<FlushDenormals> flush;
  if (weight.bf16()) flush.emplace();
  const bool streaming = num_rows <= kernels_.streaming_rows;
  const int64_t block_k = streaming ? weight.padded_slice_k() : kBlockK;
  for (int64_t k = 0; k < weight.padded_slice_k(); k += block_k) {
    const int64_t num_k = std::min(block_k, weight.padded_slice_k() - k);
    for (int p = 0; p < num_panels; ++p) {
      GemmBlock block = {};
      block.rows = product.packed + first_tile * product.TileBytes();
      block.tile_stride_bytes = product.TileBytes();
      block.first_k = slice_begin + k;
      block.panel = weight.PanelAt(first_panel + p, slice_begin + k);
      block.num_k = num_k;
      block.num_rows = num_rows;
      block.c = c + p * kPanelFloats;
      block.fresh = k == 0;
      const bool last_panel = p + 1 == num_panels;
      if (!last_panel) {
        block.next_panel = weight.PanelAt(first_panel + p + 1, slice_begin + k);
      } else if (k + num_k < weight.padded_slice_k()) {
        block.next_panel = weight.PanelAt(first_panel, slice_begin + k + num_k);
      }
      (weight.bf16() ? kernels_.gemm_bf16 : kernels_.gemm_f32)(block);
    }
  }
}

void LinearRunner::ComputeBlock(const Product& product, int64_t block, int thread) {
  // Panels vary fastest: threads that work side by side share the packed rows in the third-level
  // cache.
  const int64_t first_tile = block / product.num_panel_blocks * product.block_tiles;
  const int64_t first_panel = block % product.num_panel_blocks * product.block_panels;
  const auto num_panels =
      static_cast<int>(std::min(product.block_panels, product.weight.num_panels() - first_panel));
  const int64_t first_row = first_tile * product.tile_rows;
  const auto num_rows = static_cast<int>(
      std::min(product.block_tiles * product.tile_rows, product.num_tokens - first_row));

  // A stack of partial sums: after slice s, as many subtrees are complete as s + 1 has trailing
  // zero bits.
  float* stack = partial_[thread].as<float>();
  float* top = stack - kLevelFloats;
  for (int slice = 0; slice < product.weight.shape().num_k_slices; ++slice) {
    top += kLevelFloats;
    AccumulateSlice(product, first_tile, first_panel, num_panels, slice, top);
    for (int merges = std::countr_one(static_cast<unsigned>(slice)); merges > 0; --merges) {
      AddPanels(top - kLevelFloats, top, num_rows, num_panels, kernels_);
      top -= kLevelFloats;
    }
  }
  for (; top > stack; top -= kLevelFloats)
    AddPanels(top - kLevelFloats, top, num_rows, num_panels, kernels_);

  const int64_t out_features = product.weight.shape().out_features;
  for (int p = 0; p < num_panels; ++p) {
    const int64_t column = (first_panel + p) * kPanelColumns;
    const int64_t count = std::min<int64_t>(kPanelColumns, out_features - column);
    for (int r = 0; r < num_rows; ++r) {
      std::copy_n(stack + p * kPanelFloats + r * kPanelColumns, count,
                  product.y + (first_row + r) * out_features + column);
    }
  }
}

}  // namespace lockstep::cpu
