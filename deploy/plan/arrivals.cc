#include "deploy/plan/arrivals.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/text_file.h"
#include "model/checkpoint/strict_json.h"

namespace lockstep::plan {
namespace {

constexpr size_t kMaxTraceLines = 100000;
constexpr int64_t kMaxTraceBytes = 16 << 20;
constexpr int64_t kMaxTokens = 1 << 27;
constexpr double kMaxSimulatedTokens = 400000;
constexpr size_t kMaxSimulatedTrace = 500;  // requests

absl::StatusOr<Arrival> ParseArrival(const std::string& line) {
  const std::vector<std::string> fields = absl::StrSplit(line, ',');
  Arrival arrival;
  if (fields.size() == 3 && absl::SimpleAtod(fields[0], &arrival.seconds) &&
      absl::SimpleAtoi(fields[1], &arrival.input_tokens) &&
      absl::SimpleAtoi(fields[2], &arrival.output_tokens) && arrival.seconds >= 0 &&
      arrival.seconds <= 1e7 && arrival.input_tokens >= 1 && arrival.input_tokens <= kMaxTokens &&
      arrival.output_tokens >= 1 && arrival.output_tokens <= kMaxTokens) {
    return arrival;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "is ", Quoted(line), ", not seconds,input,output with 0 to 1e7 seconds and 1 to ", kMaxTokens,
      " tokens"));
}

}  // namespace

std::vector<Arrival> PoissonArrivals(double rate_per_s, int64_t input_tokens, int64_t output_tokens,
                                     int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Arrival> arrivals;
  double now = 0.0;
  for (int i = 0; i < count; ++i) {
    arrivals.push_back({now, input_tokens, output_tokens});
    // By hand: the library's distributions differ between libraries.
    const double uniform = (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
    now -= std::log(uniform) / rate_per_s;
  }
  return arrivals;
}

absl::StatusOr<std::vector<Arrival>> LoadTrace(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadWhole(path, kMaxTraceBytes));
  std::vector<Arrival> arrivals;
  size_t number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    const std::string stripped(absl::StripAsciiWhitespace(line));
    if (stripped.empty() || (number == 1 && absl::ascii_isalpha(stripped[0]))) continue;
    auto arrival = ParseArrival(stripped);
    absl::Status status = arrival.status();
    if (status.ok() && !arrivals.empty() && arrival->seconds < arrivals.back().seconds) {
      status = absl::InvalidArgumentError("goes back in time");
    }
    if (status.ok() && arrivals.size() == kMaxTraceLines) {
      status = absl::InvalidArgumentError("is one more than the 100,000 that are read");
    }
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " line ", number, " ", status.message()));
    }
    arrivals.push_back(*arrival);
  }
  if (arrivals.size() < 2) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has fewer than two requests"));
  }
  return arrivals;
}

absl::StatusOr<TraceSummary> Summarize(const std::vector<Arrival>& trace) {
  const double count = static_cast<double>(trace.size());
  const double seconds = trace.back().seconds - trace.front().seconds;
  if (!(seconds > 0)) {
    return absl::InvalidArgumentError("the requests of --trace all come at the same time");
  }
  TraceSummary summary;
  for (const Arrival& arrival : trace) {
    summary.input_tokens += static_cast<double>(arrival.input_tokens) / count;
    summary.output_tokens += static_cast<double>(arrival.output_tokens) / count;
    summary.longest = std::max(summary.longest, arrival.input_tokens + arrival.output_tokens);
  }
  summary.rate_per_s = (count - 1) / seconds;
  return summary;
}

ArrivalStream ArrivalsOfReplica(const ArrivalPattern& pattern, int num_replicas) {
  if (pattern.trace.empty()) {
    const double tokens = pattern.output_tokens + pattern.input_tokens / 16;
    const int count = static_cast<int>(std::clamp(kMaxSimulatedTokens / tokens, 20.0, 20000.0));
    return {PoissonArrivals(pattern.rate_per_s / num_replicas, std::llround(pattern.input_tokens),
                            std::llround(pattern.output_tokens), count, 1),
            /*goes_on=*/true};
  }
  ArrivalStream share;
  for (size_t i = 0; i < pattern.trace.size() && share.arrivals.size() < kMaxSimulatedTrace;
       i += static_cast<size_t>(num_replicas)) {
    share.arrivals.push_back(pattern.trace[i]);
  }
  return share;
}

}  // namespace lockstep::plan
