#include "parallel/all_reduce_trial.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include "kernels/base/status_macros.h"

namespace lockstep {
namespace {

constexpr int64_t kFloats = 4096;
constexpr int kWarmUps = 3;
constexpr int kTrials = 15;

}  // namespace

absl::StatusOr<float> TryAllReduce(
    const std::function<absl::Status(float* data, int64_t count)>& all_reduce) {
  std::vector<float> data(kFloats);
  std::array<float, kTrials> seconds;
  for (int i = -kWarmUps; i < kTrials; ++i) {
    const auto start = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(all_reduce(data.data(), kFloats));
    const std::chrono::duration<float> time = std::chrono::steady_clock::now() - start;
    if (i >= 0) seconds[static_cast<size_t>(i)] = time.count();
  }
  const auto middle = seconds.begin() + kTrials / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

}  // namespace lockstep
