// What gpu_bench measures: printed as it is measured, and kept as JSON.
#pragma once

#include <filesystem>
#include <string>

#include "nlohmann/json.hpp"
#include "tests/gpu/device_limits.h"

namespace lockstep::bench {

class BenchReport {
 public:
  // json_file is written anew with each measurement; empty: not at all.
  explicit BenchReport(std::filesystem::path json_file) : json_file_(std::move(json_file)) {}

  void AddDevice(const std::string& description, const DeviceLimits& limits);
  void AddLoad(const nlohmann::json& load);
  void AddDecode(const nlohmann::json& decode);
  void AddGuesses(const nlohmann::json& guesses);
  void AddPrefill(const nlohmann::json& prefill);
  void AddKvCopies(const nlohmann::json& copies);
  // A table of kernels (tests/gpu/step_kernels.h), line by line; EndKernels names those that would
  // gain the step the most at the device's limits. step: {"sequences", "new_tokens", "context"}.
  void BeginKernels(const nlohmann::json& step);
  void AddKernel(const nlohmann::json& kernel);
  void EndKernels();
  // The steps' speeds beside those that another report kept, of the same sizes.
  void CompareWith(const std::filesystem::path& other_file) const;

 private:
  void Keep() const;

  const std::filesystem::path json_file_;
  nlohmann::json report_;
};

}  // namespace lockstep::bench
