#include "deploy/plan/arrivals.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/text_file.h"
#include "model/json/strict_json.h"

namespace lockstep::plan {
namespace {

constexpr size_t kMaxTraceLines = 100000;
constexpr int64_t kMaxTraceBytes = 16 << 20;
constexpr int64_t kMaxTokens = 1 << 27;
constexpr double kMaxSimulatedTokens = 4e6;  // those of prompts cost a sixteenth

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

// "nan" and "inf" are numbers, if none that a request has.
bool IsHeader(const std::string& line) {
  const std::vector<std::string> fields = absl::StrSplit(line, ',');
  return std::none_of(fields.begin(), fields.end(), [](const std::string& field) {
    double number = 0;
    return absl::SimpleAtod(field, &number);
  });
}

}  // namespace

Arrival PoissonArrivals::Next() {
  const Arrival arrival = next_;
  if (next_gap_ == gaps_.size()) DrawGaps();
  next_.seconds += gaps_[next_gap_++];
  return arrival;
}

void PoissonArrivals::DrawGaps() {
  double sum = 0;
  for (double& gap : gaps_) {
    // By hand: the library's distributions differ between libraries.
    const double uniform = (static_cast<double>(random_() >> 11) + 0.5) * 0x1p-53;
    gap = -std::log(uniform);
    sum += gap;
  }
  for (double& gap : gaps_) gap *= mean_gap_ * static_cast<double>(gaps_.size()) / sum;
  next_gap_ = 0;
}

std::vector<Arrival> PoissonArrivals::First(int count) {
  std::vector<Arrival> arrivals;
  for (int i = 0; i < count; ++i) arrivals.push_back(Next());
  return arrivals;
}

absl::StatusOr<std::vector<Arrival>> LoadTrace(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadWhole(path, kMaxTraceBytes));
  std::vector<Arrival> arrivals;
  size_t number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    const std::string stripped(absl::StripAsciiWhitespace(line));
    if (stripped.empty() || (number == 1 && IsHeader(stripped))) continue;
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
    summary.input_tokens += static_cast<double>(arrival.input_tokens);
    summary.output_tokens += static_cast<double>(arrival.output_tokens);
    summary.longest = std::max(summary.longest, arrival.input_tokens + arrival.output_tokens);
  }
  // Sums of whole numbers have no error, by which all together might exceed the longest.
  summary.input_tokens /= count;
  summary.output_tokens /= count;
  summary.rate_per_s = (count - 1) / seconds;
  return summary;
}

TraceShare ShareOfTrace(const std::vector<Arrival>& trace, int num_replicas, int replica) {
  TraceShare share;
  double tokens = 0;
  std::mt19937_64 random(1);
  const auto count = static_cast<size_t>(num_replicas);
  for (size_t first = 0; first < trace.size(); first += count) {
    const size_t i = first + (random() + static_cast<size_t>(replica)) % count;
    if (i >= trace.size()) break;  // the last ones are not so many
    tokens += static_cast<double>(trace[i].output_tokens) +
              static_cast<double>(trace[i].input_tokens) / 16.0;
    if (tokens > kMaxSimulatedTokens && !share.arrivals.empty()) {
      ++share.num_left_out;
    } else {
      share.arrivals.push_back(trace[i]);
    }
  }
  return share;
}

}  // namespace lockstep::plan
