// What a benchmark sends and when: arrival times, prompts, output lengths. Deterministic in its
// seed, no I/O but the prompts file.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/values.h"
#include "lockstep/v1/generation.pb.h"

namespace lockstep {

// Times of arrival since the start of an open loop with `rate` requests per second.
class ArrivalClock {
 public:
  enum class Process { kPoisson, kFixed };
  ArrivalClock(Process process, double rate, uint64_t seed);
  // Seconds since the start of the next arrival; ascending. The first is 0 for fixed spacing.
  double Next();

 private:
  Process process_;
  double rate_;
  double next_ = 0.0;
  std::mt19937_64 random_;
};

// A line of a prompts file: plain text, or {"prompt": "..."} / {"token_ids": [..]} with an optional
// "max_tokens".
struct BenchPrompt {
  std::string text;
  std::vector<int32_t> token_ids;
  int64_t max_tokens = 0;  // 0 = the workload's
};
// INVALID_ARGUMENT naming the line.
absl::StatusOr<std::vector<BenchPrompt>> ParsePromptLines(absl::string_view content);

struct WorkloadOptions {
  LengthRange input_len{128, 128};
  LengthRange output_len{128, 128};
  bool ignore_eos = true;
  std::optional<float> temperature;  // unset = the server's default
  int32_t vocab_size = 0;
  std::vector<int32_t> excluded_ids;  // EOS and BOS: not part of random prompts
  std::vector<BenchPrompt> prompts;   // used in turn; empty = random token ids
  uint64_t seed = 1;
};

class Workload {
 public:
  explicit Workload(WorkloadOptions options);
  // The index-th request: the same for the same index and options, whatever was asked before.
  v1::GenerateRequest Request(uint64_t index) const;

 private:
  void SetRandomPrompt(std::mt19937_64& random, v1::GenerateRequest& request) const;
  WorkloadOptions options_;
};

}  // namespace lockstep
