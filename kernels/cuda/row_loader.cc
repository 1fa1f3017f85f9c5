#include "kernels/cuda/row_loader.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/cuda/cuda_status.h"

namespace lockstep::cuda {

template <typename Issue>
void RowLoader::Stage(const HostRows& rows, int64_t row_bytes, int64_t most_row_bytes,
                      const Issue& issue) {
  LS_CHECK(most_row_bytes <= staging_.slot_bytes()) << "a row of " << most_row_bytes << " bytes";
  const bool is_in_place = rows.is_pinned && rows.row_stride_bytes == row_bytes;
  const int64_t at_once = staging_.slot_bytes() / most_row_bytes;
  for (int64_t row = 0; row < rows.num_rows; row += at_once) {
    const int64_t count = std::min(at_once, rows.num_rows - row);
    const auto* from = static_cast<const std::byte*>(rows.data) + row * rows.row_stride_bytes;
    if (is_in_place) {
      issue(from, row, count);
      continue;
    }
    const auto fill = [&](std::byte* slot) {
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(slot + i * row_bytes, from + i * rows.row_stride_bytes,
                    static_cast<size_t>(row_bytes));
      }
    };
    staging_.FillAndIssue(fill, [&](const std::byte* slot) { issue(slot, row, count); });
  }
}

void RowLoader::Copy(const HostRows& rows, int64_t row_bytes, void* to) {
  Stage(rows, row_bytes, row_bytes, [&](const std::byte* from, int64_t row, int64_t count) {
    staging_.IssueCopy(static_cast<std::byte*>(to) + row * row_bytes, from, count * row_bytes);
  });
}

void RowLoader::Convert(const HostRows& rows, int64_t width, DType dtype, void* to) {
  const int64_t row_bytes = width * DTypeBytes(rows.dtype);
  if (rows.dtype == dtype) return Copy(rows, row_bytes, to);
  Stage(rows, row_bytes, row_bytes, [&](const std::byte* from, int64_t row, int64_t count) {
    std::byte* const out = static_cast<std::byte*>(to) + row * width * DTypeBytes(dtype);
    const std::lock_guard lock(conversion_);
    staging_.IssueCopy(stored(), from, count * row_bytes);
    CudaCheck(LaunchConvert(stored(), rows.dtype, count * width, dtype, out, stream_),
              "converting weights");
  });
}

void RowLoader::Quantize(const HostRows& rows, int64_t width, DType compute, const E4m3Rows& to) {
  const int64_t row_bytes = width * DTypeBytes(rows.dtype);
  const int64_t most_row_bytes = std::max(row_bytes, width * DTypeBytes(compute));
  Stage(rows, row_bytes, most_row_bytes, [&](const std::byte* from, int64_t row, int64_t count) {
    const std::lock_guard lock(conversion_);
    staging_.IssueCopy(stored(), from, count * row_bytes);
    const std::byte* numbers = stored();
    if (rows.dtype != compute) {
      CudaCheck(LaunchConvert(numbers, rows.dtype, count * width, compute, rounded(), stream_),
                "converting weights");
      numbers = rounded();
    }
    CudaCheck(LaunchQuantizeFp8(numbers, compute, count, width,
                                {to.q + row * width, to.scales + row}, stream_),
              "quantizing weights");
  });
}

}  // namespace lockstep::cuda
