// Rows of weights on their way to the device: from pinned memory and from any other, in every
// dtype.
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_rows.h"
#include "kernels/host_rows.h"
#include "tests/kernels/cuda/fp8_devices.h"
#ifdef LOCKSTEP_CUDA_EMULATION
#include "tests/support/cuda_emulation/emulation.h"
#endif

namespace lockstep::testing {
namespace {

using cuda::CudaBackend;
using cuda::DeviceRows;

const std::vector<DType> kDTypes = {DType::kF32, DType::kF16, DType::kBF16};

std::vector<float> Normals(int64_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& number : numbers) number = normal(random);
  return numbers;
}

std::vector<std::byte> As(DType dtype, const std::vector<float>& numbers) {
  std::vector<std::byte> row(numbers.size() * static_cast<size_t>(DTypeBytes(dtype)));
  NarrowRow(numbers.data(), static_cast<int64_t>(numbers.size()), dtype, row.data());
  return row;
}

std::vector<std::byte> Converted(const std::vector<std::byte>& row, DType from, DType to) {
  const int64_t count = std::ssize(row) / DTypeBytes(from);
  std::vector<std::byte> out(static_cast<size_t>(count * DTypeBytes(to)));
  ConvertRow(row.data(), from, count, to, out.data());
  return out;
}

class RowLoadingTest : public ::testing::Test {
 protected:
  void Start(DType compute) {
    backend_ = CudaBackend::Create({.compute = compute, .deterministic = true}).value();
  }
  // In pinned memory, or copied elsewhere when the call returns.
  HostRows Place(const std::vector<std::byte>& bytes, int64_t num_rows, DType dtype, bool pinned) {
    place_ = pinned ? backend_->AllocateOnHost(std::ssize(bytes)).value() : DeviceBuffer();
    plain_.resize(pinned ? 0 : bytes.size());
    void* const to = pinned ? place_.data() : plain_.data();
    std::memcpy(to, bytes.data(), bytes.size());
    return {.data = to,
            .dtype = dtype,
            .num_rows = num_rows,
            .row_stride_bytes = std::ssize(bytes) / num_rows,
            .is_pinned = pinned};
  }
  std::vector<std::byte> Read(const void* device, int64_t bytes) {
    std::vector<std::byte> host(static_cast<size_t>(bytes));
    backend_->CopyToHost(host.data(), device, bytes);
    return host;
  }
  std::vector<std::byte> Read(const LinearWeight& weight) {
    const auto& rows = static_cast<const DeviceRows&>(weight);
    return Read(rows.row(0), rows.row_bytes() * rows.shape().out_features);
  }
  std::vector<std::byte> ReadScales(const LinearWeight& weight) {
    return Read(static_cast<const DeviceRows&>(weight).scales(), weight.shape().out_features * 4);
  }
  std::unique_ptr<LinearWeight> Allocate(const LinearShape& shape) {
    return backend_->AllocateLinear(shape).value();
  }

  std::unique_ptr<CudaBackend> backend_;
  DeviceBuffer place_;
  std::vector<std::byte> plain_;
};

// Rows of one length fill more than one staging slot of 2 MiB.
TEST_F(RowLoadingTest, WeightsAreTheRowsInTheDTypeOfProducts) {
  for (const DType compute : kDTypes) {
    Start(compute);
    for (const auto& [num_rows, width] : {std::pair(5, 7), {3, 16}, {2, 1}, {9, 100003}}) {
      for (const DType stored : kDTypes) {
        const auto bytes = As(stored, Normals(int64_t{num_rows} * width));
        for (const bool pinned : {false, true}) {
          const auto weight = Allocate({.out_features = num_rows, .in_features = width});
          backend_->FillLinear(*weight, 0, Place(bytes, num_rows, stored, pinned));
          EXPECT_TRUE(Read(*weight) == Converted(bytes, stored, compute))
              << DTypeName(stored) << " as " << DTypeName(compute) << ", " << num_rows << " x "
              << width << (pinned ? ", pinned" : "");
        }
      }
    }
  }
}

TEST_F(RowLoadingTest, RowsThatAreNotDenseAreTakenWithoutWhatIsBetween) {
  Start(DType::kBF16);
  const auto bytes = As(DType::kBF16, {1, 2, 3, -1, 4, 5, 6, -1});
  for (const bool pinned : {false, true}) {
    const auto weight = Allocate({.out_features = 3, .in_features = 3});
    backend_->FillLinear(*weight, 1, Place(bytes, 2, DType::kBF16, pinned));
    EXPECT_EQ(Read(*weight), As(DType::kBF16, {0, 0, 0, 1, 2, 3, 4, 5, 6})) << pinned;
  }
}

TEST_F(RowLoadingTest, TablesAreTheRowsInTheirOwnDType) {
  Start(DType::kBF16);
  const auto bytes = As(DType::kF16, Normals(4 * 24));
  for (const DType kept : kDTypes) {
    for (const bool pinned : {false, true}) {
      const DeviceBuffer table = backend_->Allocate(5 * 24 * DTypeBytes(kept)).value();
      backend_->FillTable(table.as<std::byte>() + 24 * DTypeBytes(kept), kept, 24,
                          Place(bytes, 4, DType::kF16, pinned));
      auto all = Read(table.data(), table.bytes());
      all.erase(all.begin(), all.begin() + 24 * DTypeBytes(kept));
      EXPECT_EQ(all, Converted(bytes, DType::kF16, kept)) << DTypeName(kept) << pinned;
    }
  }
}

// Numbers are rounded to what products multiply, and then quantized, wherever they come from.
TEST_F(RowLoadingTest, Fp8OfPinnedRowsIsThatOfOthers) {
  Start(DType::kBF16);
  SKIP_WITHOUT_FP8();
  const LinearShape shape = {
      .out_features = 48, .in_features = 32, .quantization = Quantization::kFp8};
  const std::vector<float> numbers = Normals(48 * 32);
  const auto rounded = Converted(As(DType::kF32, numbers), DType::kF32, DType::kBF16);
  const auto want = Allocate(shape);
  backend_->FillLinear(*want, 0, Place(rounded, 48, DType::kBF16, false));
  for (const DType stored : {DType::kF32, DType::kBF16}) {
    for (const bool pinned : {false, true}) {
      const auto weight = Allocate(shape);
      backend_->FillLinear(*weight, 0, Place(As(stored, numbers), 48, stored, pinned));
      EXPECT_EQ(Read(*weight), Read(*want)) << DTypeName(stored) << pinned;
      EXPECT_EQ(ReadScales(*weight), ReadScales(*want)) << DTypeName(stored) << pinned;
    }
  }
}

TEST_F(RowLoadingTest, StoredFp8IsTakenAsItIs) {
  Start(DType::kBF16);
  SKIP_WITHOUT_FP8();
  std::vector<std::byte> values(16 * 32);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::byte>(i % 0x7f);
  const auto scales = As(DType::kF16, Normals(16));
  for (const bool pinned : {false, true}) {
    const auto weight =
        Allocate({.out_features = 16, .in_features = 32, .quantization = Quantization::kFp8});
    HostRows rows = Place(values, 16, DType::kF32, pinned);
    rows.content = RowContent::kQuantized;
    backend_->FillLinear(*weight, 0, rows);
    EXPECT_EQ(Read(*weight), values) << pinned;
    rows = Place(scales, 16, DType::kF16, pinned);
    rows.content = RowContent::kScales;
    backend_->FillLinear(*weight, 0, rows);
    EXPECT_EQ(ReadScales(*weight), Converted(scales, DType::kF16, DType::kF32)) << pinned;
  }
}

// Threads share the memory in which rows are converted.
TEST_F(RowLoadingTest, ThreadsDoNotTakeEachOthersRows) {
  Start(DType::kBF16);
  constexpr int64_t kRows = 2048, kOfAThread = 256, kWidth = 8;
  const auto bytes = As(DType::kF32, Normals(kRows * kWidth));
  const HostRows all = Place(bytes, kRows, DType::kF32, true);
  const auto weight = Allocate({.out_features = kRows, .in_features = kWidth});
  std::vector<std::thread> threads;
  for (int64_t first = 0; first < kRows; first += kOfAThread) {
    threads.emplace_back([&, first] {
      for (int64_t row = first; row < first + kOfAThread; ++row) {
        HostRows one = all;
        one.num_rows = 1;
        one.data = static_cast<const std::byte*>(all.data) + row * all.row_stride_bytes;
        backend_->FillLinear(*weight, row, one);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Read(*weight) == Converted(bytes, DType::kF32, DType::kBF16));
}

TEST_F(RowLoadingTest, RowsWiderThanAreStagedAreRefused) {
  Start(DType::kBF16);
  EXPECT_TRUE(backend_->AllocateLinear({.out_features = 1, .in_features = 524288}).ok());
  const absl::Status refused =
      backend_->AllocateLinear({.out_features = 1, .in_features = 524289}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(), "linear weight: in_features is 524289, GPUs take up to 524288");
}

#ifdef LOCKSTEP_CUDA_EMULATION
// Copies are done as late as possible: what is changed after the call shows where the device reads
// from.
TEST_F(RowLoadingTest, PinnedRowsAreReadByTheDeviceAndOthersBeforeTheCallReturns) {
  const std::vector<float> numbers = Normals(4 * 16);
  for (const DType stored : kDTypes) {
    Start(DType::kBF16);
    const auto bytes = As(stored, numbers);
    for (const bool pinned : {false, true}) {
      const auto weight = Allocate({.out_features = 4, .in_features = 16});
      const HostRows rows = Place(bytes, 4, stored, pinned);
      backend_->FillLinear(*weight, 0, rows);
      std::memset(const_cast<void*>(rows.data), 0, bytes.size());
      const std::vector<std::byte> zeros(4 * 16 * 2);
      EXPECT_EQ(Read(*weight), pinned ? zeros : Converted(bytes, stored, DType::kBF16))
          << DTypeName(stored) << pinned;
    }
  }
}

TEST(WorkMarkTest, ThreadsThatUseNoDeviceYetWaitOnTheMarks) {
  cuda_emulation::SetDevice({.num_devices = 2});
  {
    const auto backend = CudaBackend::Create({.device = 1}).value();
    const auto mark = backend->MakeMark().value();
    std::thread([&] {
      mark->WaitUntilReached();
      int device = 0;
      EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
      EXPECT_EQ(device, 1);
      mark->Set();
    }).join();
  }
  cuda_emulation::SetDevice({});
}
#endif

}  // namespace
}  // namespace lockstep::testing
