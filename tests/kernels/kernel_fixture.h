// What the kernel tests share: random data with awkward values, padded buffers, and the list of
// bodies under test.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/cpu_features.h"
#include "tests/kernels/emulated_kernels.h"

namespace lockstep::testing {

// Every table this processor runs, and the 16-lane code over emulated vectors.
inline std::vector<const cpu::VectorKernels*> KernelsUnderTest() {
  const auto available = cpu::AvailableKernels();
  std::vector<const cpu::VectorKernels*> tables(available.begin(), available.end());
  tables.push_back(&kEmulated512Kernels);
  tables.push_back(&kEmulated512Bf16Kernels);
  return tables;
}

inline std::string KernelsName(const ::testing::TestParamInfo<const cpu::VectorKernels*>& info) {
  return info.param->name;
}

// A test of a body against its plain twin.
class KernelTest : public ::testing::TestWithParam<const cpu::VectorKernels*> {
 protected:
  std::unique_ptr<Backend> Body(int num_threads = 1) const {
    return std::make_unique<cpu::CpuBackend>(*GetParam(), num_threads);
  }
  std::unique_ptr<Backend> reference_ = MakeReferenceBackend();
};

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  float Normal() { return std::normal_distribution<float>(0.0f, 1.0f)(engine_); }
  int Below(int n) { return static_cast<int>(engine_() % static_cast<uint32_t>(n)); }
  std::vector<float> Normals(int64_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = Normal();
    return values;
  }
  // Magnitudes from denormal to huge, both zeros: what shows a changed order of additions, or a
  // flushed denormal.
  std::vector<float> Wild(int64_t count) {
    std::vector<float> values(count);
    for (float& value : values) {
      value = std::ldexp(Normal(), Below(60) - 30);
      if (Below(16) == 0) value = std::ldexp(Normal(), -130 + Below(10));
      if (Below(16) == 0) value = Below(2) == 0 ? 0.0f : -0.0f;
    }
    return values;
  }
  std::mt19937& engine() { return engine_; }

 private:
  std::mt19937 engine_;
};

// An array between NaNs: a kernel that reads past an edge shows it, one that writes there too.
class Padded {
 public:
  explicit Padded(std::vector<float> values) : size_(values.size()), all_(size_ + 2 * kEdge, kNan) {
    std::copy(values.begin(), values.end(), all_.begin() + kEdge);
  }
  explicit Padded(int64_t size) : Padded(std::vector<float>(size, kNan)) {}
  float* data() { return all_.data() + kEdge; }
  std::vector<float> values() const { return {all_.begin() + kEdge, all_.begin() + kEdge + size_}; }
  void ExpectEdgesUntouched() const {
    for (int64_t i = 0; i < kEdge; ++i) {
      ASSERT_TRUE(std::isnan(all_[i]) && std::isnan(all_[kEdge + size_ + i]))
          << "wrote past an edge";
    }
  }

 private:
  static constexpr int64_t kEdge = 35;  // odd, so that nothing is aligned by chance
  static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  int64_t size_;
  std::vector<float> all_;
};

// Equal bits; any NaN equals any NaN.
inline ::testing::AssertionResult SameBits(const std::vector<float>& got,
                                           const std::vector<float>& want) {
  if (got.size() != want.size()) {
    return ::testing::AssertionFailure() << got.size() << " elements, not " << want.size();
  }
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    if (std::bit_cast<uint32_t>(got[i]) != std::bit_cast<uint32_t>(want[i])) {
      return ::testing::AssertionFailure() << "element " << i << " of " << got.size() << ": "
                                           << std::hexfloat << got[i] << ", not " << want[i];
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace lockstep::testing
