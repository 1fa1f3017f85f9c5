#include "kernels/cpu/pack_rows.h"

#include <bit>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/linear_shape.h"

namespace lockstep::cpu {
namespace {

constexpr uint32_t kUntouched = 0xdeadbeef;
constexpr int64_t kColumns = 32;

// What word `row` of line `line` should be, element by element.
uint32_t Expected(const HostRows& rows, const PackChunk& chunk, DType to, int64_t row,
                  int64_t line) {
  const char* source =
      static_cast<const char*>(rows.data) + (chunk.first + row) * rows.row_stride_bytes;
  const auto value = [&](int64_t k) {
    return k < chunk.k1 ? HostElement(source, rows.dtype, k) : 0.0f;
  };
  if (to == DType::kF32) return std::bit_cast<uint32_t>(value(chunk.k0 + line));
  const int64_t k = chunk.k0 + 2 * line;
  return ToBF16(value(k)).bits | static_cast<uint32_t>(ToBF16(value(k + 1)).bits) << 16;
}

class PackRowsTest : public ::testing::TestWithParam<std::pair<DType, DType>> {};

TEST_P(PackRowsTest, PutsEveryWordWhereItBelongs) {
  const auto [from, to] = GetParam();
  const int64_t stride = 600 * DTypeBytes(from);
  std::vector<char> data(static_cast<size_t>(40 * stride));
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>((i * 37 + i / 251) & 0x3f);
  const HostRows rows = {
      .data = data.data(), .dtype = from, .num_rows = 40, .row_stride_bytes = stride};
  for (const int64_t num_rows : {1, 3, 7, 8, 9, 16, 31, 32}) {
    for (const int64_t count : {1, 2, 3, 4, 7, 8, 9, 15, 254, 255, 256}) {
      for (const int64_t k0 : {0, 1, 300}) {
        const PackChunk chunk = {.first = 2, .num_rows = num_rows, .k0 = k0, .k1 = k0 + count};
        const int64_t num_lines = to == DType::kBF16 ? (count + 1) / 2 : count;
        std::vector<uint32_t> lines(static_cast<size_t>((num_lines + 1) * kColumns), kUntouched);
        PackRows(rows, chunk, to, kColumns, reinterpret_cast<char*>(lines.data()));
        for (int64_t line = 0; line <= num_lines; ++line) {
          for (int64_t row = 0; row < kColumns; ++row) {
            const bool is_written = line < num_lines && row < num_rows;
            ASSERT_EQ(lines[static_cast<size_t>(line * kColumns + row)],
                      is_written ? Expected(rows, chunk, to, row, line) : kUntouched)
                << num_rows << " rows, " << count << " from " << k0 << ": line " << line << ", row "
                << row;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    DTypes, PackRowsTest,
    ::testing::Values(std::pair{DType::kF32, DType::kF32}, std::pair{DType::kF16, DType::kF32},
                      std::pair{DType::kBF16, DType::kF32}, std::pair{DType::kF32, DType::kBF16},
                      std::pair{DType::kF16, DType::kBF16}, std::pair{DType::kBF16, DType::kBF16}));

}  // namespace
}  // namespace lockstep::cpu
