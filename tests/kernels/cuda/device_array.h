// What tests of CUDA kernels share: arrays on the device between guards, and comparisons.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/dtype.h"

namespace lockstep::testing {

// Elements on the device, all bits set around them and, unless given, in them: NaN to a kernel that
// reads past an edge or what was never written, and changed by one that writes there.
template <typename T>
class DeviceArray {
 public:
  // `shift` elements from an address aligned to 64 bytes.
  explicit DeviceArray(const std::vector<T>& values, int shift = 0)
      : DeviceArray(static_cast<int64_t>(values.size()), shift) {
    Copy(data(), values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice);
  }
  explicit DeviceArray(int64_t size, int shift = 0)
      : size_(size), offset_(kEdgeBytes + shift * sizeof(T)) {
    EXPECT_EQ(cudaMalloc(&memory_, AllBytes()), cudaSuccess);
    EXPECT_EQ(cudaMemset(memory_, 0xff, AllBytes()), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);  // work may be of any stream
  }
  ~DeviceArray() { cudaFree(memory_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return reinterpret_cast<T*>(static_cast<uint8_t*>(memory_) + offset_); }
  void Write(const std::vector<T>& values) {
    ASSERT_EQ(static_cast<int64_t>(values.size()), size_);
    Copy(data(), values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice);
  }
  // Once all work issued so far is done; checks the edges.
  std::vector<T> Read() const {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::vector<uint8_t> all(AllBytes());
    Copy(all.data(), memory_, all.size(), cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < all.size(); ++i) {
      if (i >= offset_ && i < offset_ + size_ * sizeof(T)) continue;
      if (all[i] != 0xff) {
        ADD_FAILURE() << "wrote past an edge";
        break;
      }
    }
    std::vector<T> values(size_);
    if (size_ > 0) std::memcpy(values.data(), all.data() + offset_, size_ * sizeof(T));
    return values;
  }

 private:
  static constexpr size_t kEdgeBytes = 256;

  size_t AllBytes() const { return offset_ + size_ * sizeof(T) + kEdgeBytes; }
  static void Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    if (bytes == 0) return;
    EXPECT_EQ(cudaMemcpy(to, from, bytes, kind), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  }

  int64_t size_;
  size_t offset_;
  void* memory_ = nullptr;
};

// By the definition: 1 sign, 4 exponent (bias 7), 3 mantissa bits.
inline float E4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15;
  const int mantissa = bits & 7;
  const float sign = (bits & 0x80) != 0 ? -1.0f : 1.0f;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -9);
  return sign * std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
}

// The nearest, of two as near the one whose last bit is 0; beyond 448 that. Not of NaN.
inline uint8_t ToE4m3(float x) {
  constexpr uint8_t kLargest = 0x7e;
  const float magnitude = std::min(std::abs(x), E4m3(kLargest));
  const auto distance = [&](uint8_t bits) { return std::abs(E4m3(bits) - magnitude); };
  uint8_t nearest = 0;
  for (uint8_t bits = 1; bits <= kLargest; ++bits) {
    if (distance(bits) < distance(nearest) ||
        (distance(bits) == distance(nearest) && bits % 2 == 0)) {
      nearest = bits;
    }
  }
  return static_cast<uint8_t>(nearest | (std::signbit(x) ? 0x80 : 0));
}

// T: BF16, F16 or E4M3.
template <typename T>
std::vector<float> ToFloats(const std::vector<T>& values) {
  std::vector<float> wide;
  for (const T x : values) wide.push_back(ToFloat(x));
  return wide;
}
template <typename T>
std::vector<T> Narrowed(const std::vector<float>& values) {
  std::vector<T> narrow;
  for (const float x : values) {
    if constexpr (std::is_same_v<T, F16>) {
      narrow.push_back(ToF16(x));
    } else if constexpr (std::is_same_v<T, E4M3>) {
      narrow.push_back(ToE4M3(x));
    } else {
      narrow.push_back(ToBF16(x));
    }
  }
  return narrow;
}
inline std::vector<float> RoundedTo(DType dtype, const std::vector<float>& values) {
  if (dtype == DType::kF32) return values;
  if (dtype == DType::kE4M3) return ToFloats(Narrowed<E4M3>(values));
  return dtype == DType::kF16 ? ToFloats(Narrowed<F16>(values)) : ToFloats(Narrowed<BF16>(values));
}

// The elements that fill(memory) writes on the device in that dtype, as floats.
template <typename Fill>
std::vector<float> Filled(DType dtype, int64_t size, int shift, const Fill& fill) {
  const auto read = [&](const auto& array) {
    fill(array.data());
    return array.Read();
  };
  if (dtype == DType::kF32) return read(DeviceArray<float>(size, shift));
  if (dtype == DType::kF16) return ToFloats(read(DeviceArray<F16>(size, shift)));
  if (dtype == DType::kE4M3) return ToFloats(read(DeviceArray<E4M3>(size, shift)));
  return ToFloats(read(DeviceArray<BF16>(size, shift)));
}

// Elements equal within a part of what is wanted.
inline ::testing::AssertionResult Near(const std::vector<float>& got,
                                       const std::vector<float>& want, double relative,
                                       double absolute = 0.0) {
  if (got.size() != want.size()) {
    return ::testing::AssertionFailure() << got.size() << " elements, not " << want.size();
  }
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))) continue;
    const double error = std::abs(double{got[i]} - want[i]);
    if (error <= relative * std::abs(want[i]) + absolute) continue;
    return ::testing::AssertionFailure()
           << "element " << i << " of " << got.size() << ": " << got[i] << ", not " << want[i];
  }
  return ::testing::AssertionSuccess();
}

// Rows of `width` elements, each with an error no longer than a part of the row itself.
inline ::testing::AssertionResult RowsNear(const std::vector<float>& got,
                                           const std::vector<float>& want, int64_t width,
                                           double relative) {
  if (got.size() != want.size()) {
    return ::testing::AssertionFailure() << got.size() << " elements, not " << want.size();
  }
  for (size_t row = 0; row * width < got.size(); ++row) {
    double error = 0.0;
    double length = 0.0;
    for (size_t i = row * width; i < (row + 1) * width; ++i) {
      error += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
      length += double{want[i]} * want[i];
    }
    if (std::sqrt(error) <= relative * std::sqrt(length)) continue;  // not so for NaN
    return ::testing::AssertionFailure() << "row " << row << ": an error of " << std::sqrt(error)
                                         << " in a length of " << std::sqrt(length);
  }
  return ::testing::AssertionSuccess();
}

}  // namespace lockstep::testing
