#include "kernels/cpu/packed_linear.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/linear_shape.h"
#include "kernels/cpu/pack_rows.h"

namespace lockstep::cpu {

absl::StatusOr<std::unique_ptr<PackedWeight>> PackedWeight::Allocate(
    const LinearShape& shape, int panel_columns, const WeightAllocator& allocator) {
  RETURN_IF_ERROR(CheckLinearShape(shape));
  auto weight = std::unique_ptr<PackedWeight>(new PackedWeight(shape, panel_columns));
  const int64_t columns = weight->num_panels() * panel_columns;  // at most 2^32, as padded_k
  if (columns > (INT64_MAX >> 4) / weight->padded_k()) {
    return absl::ResourceExhaustedError("linear weight: larger than any memory");
  }
  ASSIGN_OR_RETURN(weight->buffer_,
                   allocator(columns * weight->padded_k() * DTypeBytes(shape.dtype)));
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

}  // namespace lockstep::cpu
