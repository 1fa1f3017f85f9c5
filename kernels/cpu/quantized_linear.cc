#include "kernels/cpu/quantized_linear.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/linear_shape.h"

namespace lockstep::cpu {
namespace {

constexpr int kMaxBlockPanels = 4;
constexpr int kRunRows = 96;    // whose activations stay in the second-level cache, as c does
constexpr int64_t kRunK = 512;  // of a panel, in the first-level cache while the tiles pass
constexpr int64_t kPanelFloats = int64_t{kRunRows} * kQuantizedColumns;
constexpr int64_t kQuantizedLevelFloats = kMaxBlockPanels * kPanelFloats;

}  // namespace

// ---- weights ----

QuantizedWeight::QuantizedWeight(const LinearShape& shape, const VectorKernels& kernels)
    : LinearWeight(shape),
      kernels_(kernels),
      groups_{shape.in_features / shape.num_k_slices, QuantizedGroup(shape.quantization)} {}

absl::StatusOr<std::unique_ptr<QuantizedWeight>> QuantizedWeight::Allocate(
    const LinearShape& shape, const VectorKernels& kernels, const WeightAllocator& allocator) {
  RETURN_IF_ERROR(CheckLinearShape(shape));
  auto weight = std::unique_ptr<QuantizedWeight>(new QuantizedWeight(shape, kernels));
  if (weight->num_panels() > INT64_MAX / 2 / weight->panel_bytes()) {
    return absl::ResourceExhaustedError("linear weight: larger than any memory");
  }
  ASSIGN_OR_RETURN(weight->buffer_, allocator(weight->num_panels() * weight->panel_bytes()));
  return weight;
}

int64_t QuantizedWeight::GroupOffset(int64_t i) const {
  const int64_t whole = std::min(i, groups_.slice_k / groups_.group);
  const int64_t offset = whole * QuantizedGroupBytes(groups_.group, bits());
  return whole == i
             ? offset
             : offset + QuantizedGroupBytes(PaddedGroup(groups_.slice_k % groups_.group), bits());
}

int64_t QuantizedWeight::RowOffset(int64_t i) const {
  const int64_t whole = std::min(i, groups_.slice_k / groups_.group);
  const int64_t offset = whole * QuantizedRowBytes(groups_.group);
  return whole == i ? offset
                    : offset + QuantizedRowBytes(PaddedGroup(groups_.slice_k % groups_.group));
}

void QuantizedWeight::Fill(int64_t first_row, const HostRows& rows) {
  CheckHostRows(shape(), first_row, rows);
  for (int64_t done = 0; done < rows.num_rows;) {
    const int64_t column = (first_row + done) % kQuantizedColumns;
    const int64_t count = std::min(rows.num_rows - done, kQuantizedColumns - column);
    const PanelRows part = {done, count, (first_row + done) / kQuantizedColumns, column};
    switch (rows.content) {
      case RowContent::kValues:
        FillValues(rows, part);
        break;
      case RowContent::kQuantized:
        FillQuantized(rows, part);
        break;
      case RowContent::kScales:
        FillScales(rows, part);
        break;
    }
    done += count;
  }
}

// bytes: [count][kMaxQuantizedGroup] q with the zero added. Columns vary fastest, so that lines of
// the panel are written whole.
void QuantizedWeight::StoreGroup(char* group, int64_t column, const uint8_t* bytes, int64_t count,
                                 int64_t padded_k) const {
  char* out = group + kQuantizedScaleBytes + column * 4;
  const int64_t step_k = bits() == 8 ? 4 : 8;
  for (int64_t k = 0; k < padded_k; k += step_k) {
    for (int64_t c = 0; c < count; ++c) {
      const uint8_t* from = bytes + c * kMaxQuantizedGroup + k;
      uint32_t quad;
      std::memcpy(&quad, from, 4);
      if (step_k == 8) {
        uint32_t second;
        std::memcpy(&second, from + 4, 4);
        quad |= second << 4;
      }
      std::memcpy(out + c * 4, &quad, 4);
    }
    out += kQuantizedColumns * 4;
  }
}

void QuantizedWeight::FillValues(const HostRows& rows, const PanelRows& part) {
  const auto quantize =
      bits() == 8 ? kernels_.quantized->quantize_int8 : kernels_.quantized->quantize_int4;
  const uint8_t zero = static_cast<uint8_t>(QuantizedZero(shape().quantization));
  alignas(64) uint8_t bytes[kQuantizedColumns][kMaxQuantizedGroup];
  alignas(64) float wide[kMaxQuantizedGroup];
  for (int slice = 0; slice < shape().num_k_slices; ++slice) {
    char* base = SliceAt(part.panel, slice);
    for (int64_t g = 0; g < groups_.per_slice(); ++g) {
      char* group = base + GroupOffset(g);
      const int size = groups_.size(g);
      const int64_t first_k = slice * groups_.slice_k + g * groups_.group;
      for (int64_t c = 0; c < part.count; ++c) {
        const char* row =
            static_cast<const char*>(rows.data) + (part.first + c) * rows.row_stride_bytes;
        const float* w = wide;
        if (rows.dtype == DType::kF32) {
          std::memcpy(wide, row + first_k * 4, static_cast<size_t>(size) * 4);
        } else if (rows.dtype == DType::kBF16) {
          kernels_.widen_bf16(reinterpret_cast<const uint16_t*>(row) + first_k, size, wide);
        } else {
          for (int k = 0; k < size; ++k) wide[k] = HostElement(row, rows.dtype, first_k + k);
        }
        int8_t q[kMaxQuantizedGroup];
        const uint16_t scale = quantize(w, size, q);
        std::memcpy(group + (part.column + c) * 2, &scale, 2);
        for (int k = 0; k < size; ++k) bytes[c][k] = static_cast<uint8_t>(q[k] + zero);
        for (int64_t k = size; k < PaddedGroup(size); ++k) bytes[c][k] = 0;
      }
      StoreGroup(group, part.column, bytes[0], part.count, PaddedGroup(size));
    }
  }
}

void QuantizedWeight::FillQuantized(const HostRows& rows, const PanelRows& part) {
  alignas(64) uint8_t bytes[kQuantizedColumns][kMaxQuantizedGroup] = {};
  for (int slice = 0; slice < shape().num_k_slices; ++slice) {
    char* base = SliceAt(part.panel, slice);
    for (int64_t g = 0; g < groups_.per_slice(); ++g) {
      const int size = groups_.size(g);
      const int64_t first_k = slice * groups_.slice_k + g * groups_.group;
      for (int64_t c = 0; c < part.count; ++c) {
        const uint8_t* row =
            static_cast<const uint8_t*>(rows.data) + (part.first + c) * rows.row_stride_bytes;
        std::memcpy(bytes[c], row + first_k, static_cast<size_t>(size));
        for (int64_t k = size; k < PaddedGroup(size); ++k) bytes[c][k] = 0;
      }
      StoreGroup(base + GroupOffset(g), part.column, bytes[0], part.count, PaddedGroup(size));
    }
  }
}

void QuantizedWeight::FillScales(const HostRows& rows, const PanelRows& part) {
  for (int slice = 0; slice < shape().num_k_slices; ++slice) {
    for (int64_t g = 0; g < groups_.per_slice(); ++g) {
      char* group = SliceAt(part.panel, slice) + GroupOffset(g);
      for (int64_t c = 0; c < part.count; ++c) {
        const char* row =
            static_cast<const char*>(rows.data) + (part.first + c) * rows.row_stride_bytes;
        const BF16 scale = ToBF16(HostElement(row, rows.dtype, slice * groups_.per_slice() + g));
        std::memcpy(group + (part.column + c) * 2, &scale, 2);
      }
    }
  }
}

// ---- products ----

// One call of Run, cut into blocks of (row tiles) x (panels).
struct QuantizedRunner::Product {
  const QuantizedWeight& weight;
  const float* x;
  int64_t num_tokens;
  float* y;
  char* packed;  // [num_tiles][bytes of a tile]
  int64_t tile_rows;
  int64_t num_tiles;
  int64_t block_tiles;
  int64_t block_panels;
  int64_t num_row_blocks;
  int64_t num_panel_blocks;

  int RowsOf(int64_t tile) const {
    return static_cast<int>(std::min(tile_rows, num_tokens - tile * tile_rows));
  }
  // Without slices to add, the sums of a whole panel go straight to y.
  bool StoresAtOnce(int64_t panel) const {
    return weight.shape().num_k_slices == 1 &&
           (panel + 1) * kQuantizedColumns <= weight.shape().out_features;
  }
  int64_t tile_bytes() const {
    return tile_rows * weight.slice_row_bytes() * weight.shape().num_k_slices;
  }
};

QuantizedRunner::QuantizedRunner(const VectorKernels& kernels, ThreadPool& pool)
    : kernels_(kernels),
      quantized_(*kernels.quantized),
      pool_(pool),
      partial_(pool.num_threads()) {}

QuantizedRunner::Product QuantizedRunner::Plan(const QuantizedWeight& weight, const float* x,
                                               int64_t num_tokens, float* y) {
  Product product = {weight, x, num_tokens, y, nullptr, 0, 0, 0, 0, 0, 0};
  product.num_tiles = CeilDiv(num_tokens, quantized_.tile_rows);
  product.tile_rows = CeilDiv(num_tokens, product.num_tiles);
  product.num_tiles = CeilDiv(num_tokens, product.tile_rows);
  product.num_row_blocks = CeilDiv(product.num_tiles, kRunRows / product.tile_rows);
  product.block_tiles = CeilDiv(product.num_tiles, product.num_row_blocks);
  product.num_row_blocks = CeilDiv(product.num_tiles, product.block_tiles);
  const int64_t share =
      weight.num_panels() * product.num_row_blocks / (kBlocksPerThread * pool_.num_threads());
  product.block_panels = std::clamp<int64_t>(share, 1, kMaxBlockPanels);
  panel_starts_.clear();
  if (product.num_tiles == 1) {
    DivideByTurns(weight.num_panels());
  } else {
    for (int64_t panel = 0; panel < weight.num_panels(); panel += product.block_panels) {
      panel_starts_.push_back(panel);
    }
  }
  product.num_panel_blocks = std::ssize(panel_starts_);
  panel_starts_.push_back(weight.num_panels());
  return product;
}

// For a tile that reads each panel once: every stream has to get going, so the first blocks are
// long, and the last ones short, so that threads end together.
void QuantizedRunner::DivideByTurns(int64_t num_panels) {
  for (int64_t panel = 0; panel < num_panels;) {
    panel_starts_.push_back(panel);
    panel += std::max<int64_t>(1, (num_panels - panel) / (3 * pool_.num_threads()));
  }
}

void QuantizedRunner::Run(const QuantizedWeight& weight, const float* x, int64_t num_tokens,
                          float* y) {
  if (num_tokens == 0) return;
  Product product = Plan(weight, x, num_tokens, y);
  product.packed = static_cast<char*>(rows_.Reserve(product.num_tiles * product.tile_bytes()));
  for (DeviceBuffer& partial : partial_) {
    if (partial.data() != nullptr) continue;
    auto buffer =
        AllocateHost(kMaxTreeLevels * kQuantizedLevelFloats * static_cast<int64_t>(sizeof(float)));
    LS_CHECK(buffer.ok()) << buffer.status();
    partial = *std::move(buffer);
  }
  if (product.num_tiles == 1) {
    QuantizeTile(product, 0);
  } else {
    pool_.ParallelFor(product.num_tiles, [&](int64_t tile, int) { QuantizeTile(product, tile); });
  }
  pool_.ParallelFor(product.num_row_blocks * product.num_panel_blocks,
                    [&](int64_t block, int thread) { ComputeBlock(product, block, thread); });
}

void QuantizedRunner::QuantizeTile(const Product& product, int64_t tile) const {
  const QuantizedWeight& weight = product.weight;
  const QuantizedGroups& groups = weight.groups();
  const int rows = product.RowsOf(tile);
  const int zero = QuantizedZero(weight.shape().quantization);
  const int64_t in_features = weight.shape().in_features;
  const float* x = product.x + tile * product.tile_rows * in_features;
  char* out = product.packed + tile * product.tile_bytes();
  for (int slice = 0; slice < weight.shape().num_k_slices; ++slice) {
    for (int64_t g = 0; g < groups.per_slice(); ++g) {
      const int size = groups.size(g);
      quantized_.quantize_rows(x + slice * groups.slice_k + g * groups.group, in_features, rows,
                               size, zero, out);
      out += QuantizedRowBytes(PaddedGroup(size)) * rows;
    }
  }
}

// One K-slice's share of num_panels panels, kPanelFloats apart in c.
void QuantizedRunner::AccumulateSlice(const Product& product, const QuantizedBlock& first,
                                      int num_panels, int64_t first_panel, int slice) const {
  const QuantizedWeight& weight = product.weight;
  const int64_t first_row =
      (first.rows - product.packed) / product.tile_bytes() * product.tile_rows;
  const QuantizedGroups& groups = weight.groups();
  const auto gemm = weight.bits() == 8 ? quantized_.gemm_int8 : quantized_.gemm_int4;
  const int64_t num_whole = groups.slice_k / groups.group;
  const bool one_sweep = first.num_rows <= first.tile_rows;
  const int64_t block_groups = one_sweep ? std::max<int64_t>(1, num_whole) : kRunK / groups.group;
  QuantizedBlock block = first;
  for (int64_t g = 0; g < groups.per_slice(); g += block.num_groups) {
    const bool whole = g < num_whole;
    block.num_groups = whole ? std::min(block_groups, num_whole - g) : 1;
    block.group_k = static_cast<int>(PaddedGroup(groups.size(g)));
    block.first_row_byte = slice * weight.slice_row_bytes() + weight.RowOffset(g);
    block.fresh = g == 0;
    block.fetch_bytes = weight.GroupOffset(g + block.num_groups) - weight.GroupOffset(g);
    for (int p = 0; p < num_panels; ++p) {
      block.c = first.c + p * kPanelFloats;
      block.out = nullptr;
      if (g + block.num_groups == groups.per_slice() && product.StoresAtOnce(first_panel + p)) {
        block.out = product.y + first_row * weight.shape().out_features +
                    (first_panel + p) * kQuantizedColumns;
      }
      block.panel = weight.SliceAt(first_panel + p, slice) + weight.GroupOffset(g);
      block.fetch = p + 1 < num_panels ? block.panel + weight.panel_bytes()
                                       : weight.SliceAt(first_panel, slice) +
                                             weight.GroupOffset(g + block.num_groups);
      gemm(block);
    }
  }
}

void QuantizedRunner::ComputeBlock(const Product& product, int64_t index, int thread) {
  const QuantizedWeight& weight = product.weight;
  const int64_t first_tile = index / product.num_panel_blocks * product.block_tiles;
  const auto panels = static_cast<size_t>(index % product.num_panel_blocks);
  const int64_t first_panel = panel_starts_[panels];
  const int64_t end_panel = panel_starts_[panels + 1];
  QuantizedBlock block = {};
  block.out_stride = weight.shape().out_features;
  block.rows = product.packed + first_tile * product.tile_bytes();
  block.tile_stride_bytes = product.tile_bytes();
  block.tile_rows = static_cast<int>(product.tile_rows);
  block.num_rows = static_cast<int>(std::min(product.block_tiles * product.tile_rows,
                                             product.num_tokens - first_tile * product.tile_rows));
  // One tile reads each panel from end to end; several share a block of k of all panels.
  const int64_t step = product.block_tiles == 1 ? 1 : product.block_panels;
  for (int64_t panel = first_panel; panel < end_panel; panel += step) {
    const int num_panels = static_cast<int>(std::min(step, end_panel - panel));
    const float* sums = AddSlices(product, block, num_panels, panel, thread);
    StorePanels(product, sums, num_panels, panel, first_tile * product.tile_rows, block.num_rows);
  }
}

// The tree over K-slices: [num_panels][kPanelFloats], in the thread's own memory.
const float* QuantizedRunner::AddSlices(const Product& product, const QuantizedBlock& first,
                                        int num_panels, int64_t first_panel, int thread) const {
  QuantizedBlock block = first;
  float* const stack = partial_[static_cast<size_t>(thread)].as<float>();
  float* top = stack;
  const auto merge = [&] {
    float* below = top - kQuantizedLevelFloats;
    for (int p = 0; p < num_panels; ++p) {
      kernels_.add(below + p * kPanelFloats, top + p * kPanelFloats,
                   int64_t{block.num_rows} * kQuantizedColumns);
    }
    top = below;
  };
  // After slice s, as many subtrees are complete as s + 1 has trailing zero bits.
  for (int slice = 0; slice < product.weight.shape().num_k_slices; ++slice) {
    if (slice > 0) top += kQuantizedLevelFloats;
    block.c = top;
    AccumulateSlice(product, block, num_panels, first_panel, slice);
    for (int merges = std::countr_one(static_cast<unsigned>(slice)); merges > 0; --merges) merge();
  }
  while (top > stack) merge();
  return stack;
}

void QuantizedRunner::StorePanels(const Product& product, const float* sums, int num_panels,
                                  int64_t first_panel, int64_t first_row, int num_rows) const {
  const int64_t out_features = product.weight.shape().out_features;
  for (int p = 0; p < num_panels; ++p) {
    if (product.StoresAtOnce(first_panel + p)) continue;
    const int64_t column = (first_panel + p) * kQuantizedColumns;
    const int64_t count = std::min<int64_t>(kQuantizedColumns, out_features - column);
    const float* c = sums + p * kPanelFloats;
    for (int r = 0; r < num_rows; ++r) {
      float* y = product.y + (first_row + r) * out_features + column;
      // Rows are far apart: let their lines come together.
      __builtin_prefetch(y + 8 * out_features, 1);
      __builtin_prefetch(y + 8 * out_features + kQuantizedColumns / 2, 1);
      std::copy_n(c + r * kQuantizedColumns, count, y);
    }
  }
}

}  // namespace lockstep::cpu
