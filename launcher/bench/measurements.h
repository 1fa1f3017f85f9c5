// Per-request measurements and the report made of them. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "launcher/bench/percentiles.h"
#include "nlohmann/json.hpp"

namespace lockstep {

// One request as its client saw it. Times count from its planned arrival, so that a client that
// falls behind does not hide the wait ("coordinated omission", Tene 2013).
class RequestTimes {
 public:
  explicit RequestTimes(absl::Time arrival) : arrival_(arrival) {}
  // A message with num_tokens >= 1 new tokens came.
  void AddTokens(int64_t num_tokens, absl::Time now);
  void Finish(absl::Time now) { finished_ = now; }

  bool has_tokens() const { return num_tokens_ > 0; }
  int64_t num_tokens() const { return num_tokens_; }
  absl::Time arrival() const { return arrival_; }
  absl::Time finished() const { return finished_; }
  double ttft_ms() const { return absl::ToDoubleMilliseconds(first_ - arrival_); }
  double end_to_end_ms() const { return absl::ToDoubleMilliseconds(finished_ - arrival_); }
  // Mean time per output token after the first; none for a single token.
  std::optional<double> tpot_ms() const;
  // Gaps between tokens; those that came in one message share its gap evenly.
  const std::vector<float>& gaps_ms() const { return gaps_ms_; }

 private:
  absl::Time arrival_;
  absl::Time first_;
  absl::Time last_;
  absl::Time finished_;
  int64_t num_tokens_ = 0;
  std::vector<float> gaps_ms_;
};

struct ServiceLevel {
  double ttft_ms = 0;  // 0 = no limit
  double tpot_ms = 0;
  bool is_set() const { return ttft_ms > 0 || tpot_ms > 0; }
  bool IsMetBy(const RequestTimes& times) const;
};

struct BenchReport {
  int64_t num_completed = 0;
  int64_t num_failed = 0;
  std::map<std::string, int64_t> errors;             // gRPC code name -> count
  std::map<std::string, std::string> first_reasons;  // gRPC code name -> of its first failure
  double seconds = 0;                                // first arrival to last completion
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
  Summary ttft_ms;
  Summary tpot_ms;
  Summary itl_ms;
  Summary end_to_end_ms;
  int64_t num_within_slo = 0;
  ServiceLevel slo;

  std::string ToText() const;
  nlohmann::ordered_json ToJson() const;
};

// Collects finished requests; not thread-safe.
class Measurements {
 public:
  void AddCompleted(const RequestTimes& times, int64_t num_prompt_tokens);
  void AddFailed(const std::string& code, const std::string& reason);
  BenchReport Report(const ServiceLevel& slo) const;
  // An array of what each completed request saw, in the order of arrival; seconds count from the
  // first. tpot_ms is missing after a single token.
  nlohmann::ordered_json EachToJson() const;

 private:
  std::vector<RequestTimes> completed_;
  int64_t input_tokens_ = 0;
  std::map<std::string, int64_t> errors_;
  std::map<std::string, std::string> first_reasons_;
};

}  // namespace lockstep
