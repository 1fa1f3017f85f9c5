// Rows of numbers from one dtype to another.
#include "kernels/host_rows.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "kernels/cpu_backend_options.h"
#include "kernels/device_buffer.h"

namespace lockstep::testing {
namespace {

const std::vector<DType> kDTypes = {DType::kF32, DType::kF16, DType::kBF16};

std::vector<std::byte> RowOf(const std::vector<float>& numbers, DType dtype) {
  std::vector<std::byte> row(numbers.size() * static_cast<size_t>(DTypeBytes(dtype)));
  NarrowRow(numbers.data(), static_cast<int64_t>(numbers.size()), dtype, row.data());
  return row;
}

// Longer than what is converted at once.
std::vector<float> Numbers() {
  std::mt19937 random(1);
  std::vector<float> numbers = {0.0f, -0.0f, 1.0f, 65504.0f, -3e-8f, INFINITY};
  std::normal_distribution<float> normal;
  while (numbers.size() < 2500) numbers.push_back(normal(random));
  return numbers;
}

TEST(ConvertRowTest, NumbersAreRoundedFromWhatTheyAre) {
  const std::vector<float> numbers = Numbers();
  for (const DType from : kDTypes) {
    const std::vector<std::byte> stored = RowOf(numbers, from);
    std::vector<float> exact(numbers.size());
    WidenRow(stored.data(), from, std::ssize(numbers), exact.data());
    for (const DType to : kDTypes) {
      std::vector<std::byte> out(numbers.size() * static_cast<size_t>(DTypeBytes(to)));
      ConvertRow(stored.data(), from, std::ssize(numbers), to, out.data());
      EXPECT_EQ(out, RowOf(exact, to)) << DTypeName(from) << " to " << DTypeName(to);
    }
  }
}

TEST(FillTableTest, RowsGoWhereTheyBelong) {
  const auto backend = MakeReferenceBackend();
  const std::vector<float> stored = {1, 2, 3, -1, 4, 5, 6, -1};  // the last of each is not meant
  const DeviceBuffer table = backend->Allocate(3 * 3 * 2).value();
  backend->FillTable(table.as<BF16>() + 3, DType::kBF16, 3,
                     {.data = stored.data(), .num_rows = 2, .row_stride_bytes = 16});
  std::vector<float> kept(9);
  WidenRow(table.data(), DType::kBF16, 9, kept.data());
  EXPECT_EQ(kept, (std::vector<float>{0, 0, 0, 1, 2, 3, 4, 5, 6}));
}

}  // namespace
}  // namespace lockstep::testing
