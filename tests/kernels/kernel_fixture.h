// What the kernel tests share: random data with awkward values, padded buffers, and the list of
// bodies under test.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu_backend_options.h"
#include "tests/kernels/emulated_kernels.h"

namespace lockstep::testing {

// Every table this processor runs, and the 16-lane code over emulated vectors. Where sanitizers
// look on, emulated vectors take longer than all else: there they stand in only for what is
// missing.
inline std::vector<const cpu::VectorKernels*> KernelsUnderTest() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr bool kSanitized = true;
#else
  constexpr bool kSanitized = false;
#endif
  const auto available = cpu::AvailableKernels();
  std::vector<const cpu::VectorKernels*> tables(available.begin(), available.end());
  for (const cpu::VectorKernels* emulated : {&kEmulated512Kernels, &kEmulated512Bf16Kernels}) {
    const bool real = std::ranges::any_of(available, [&](const cpu::VectorKernels* table) {
      return table->panel_columns == emulated->panel_columns &&
             table->pairs_as_bf16 == emulated->pairs_as_bf16;
    });
    if (!kSanitized || !real) tables.push_back(emulated);
  }
  return tables;
}

// One table of those that multiply floats by the same functions: the others differ in quantized
// weights alone.
inline std::vector<const cpu::VectorKernels*> FloatKernelsUnderTest() {
  std::vector<const cpu::VectorKernels*> tables;
  for (const cpu::VectorKernels* table : KernelsUnderTest()) {
    const bool known = std::ranges::any_of(tables, [&](const cpu::VectorKernels* other) {
      return other->gemm_f32 == table->gemm_f32 && other->gemm_bf16 == table->gemm_bf16;
    });
    if (!known) tables.push_back(table);
  }
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

// What `make` gives for the case of that name, made once for all tables: plain twins are the
// slowest. Every place that calls this has names of its own.
template <typename Make>
const std::invoke_result_t<Make>& OncePerCase(const std::string& name, Make make) {
  static std::map<std::string, std::invoke_result_t<Make>> made;
  auto found = made.find(name);
  if (found == made.end()) found = made.emplace(name, make()).first;
  return found->second;
}

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
