// The load and the limits of `lockstep plan`, for GPUs and for this host.
#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "deploy/plan/arrivals.h"
#include "kernels/base/status_macros.h"
#include "launcher/plan_options.h"

namespace lockstep {
namespace {

// Milliseconds of "2s" or "50ms". A bare number is refused: it would be a guess which it means.
absl::StatusOr<double> ParseMilliseconds(const char* flag, const std::string& text) {
  if (text.empty()) return 0.0;
  absl::string_view number = text;
  const bool is_ms = absl::ConsumeSuffix(&number, "ms");
  const bool is_s = !is_ms && absl::ConsumeSuffix(&number, "s");
  const double scale = is_s ? 1e3 : 1.0;
  double value = 0.0;
  const bool is_time = absl::SimpleAtod(number, &value) && value > 0 && value <= 1e9;
  if (is_time && !is_ms && !is_s) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " ", text, " has no unit: write ", text, "s or ", text, "ms"));
  }
  if (!is_time) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " ", text, " is not a time above zero like 2s or 50ms"));
  }
  return value * scale;
}

// "2/s", "120/min", "2": requests per second.
absl::StatusOr<double> ParseRate(const std::string& text) {
  if (text.empty()) return 0.0;
  absl::string_view number = text;
  double scale = 1.0;
  if (absl::ConsumeSuffix(&number, "/min")) {
    scale = 1.0 / 60.0;
  } else {
    absl::ConsumeSuffix(&number, "/s");
  }
  double value = 0.0;
  if (!absl::SimpleAtod(number, &value) || !(value > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rate ", text, " is not a rate above zero like 2/s or 120/min"));
  }
  const double rate = value * scale;
  if (rate < plan::kLowestRate || rate > plan::kHighestRate) {
    return absl::InvalidArgumentError(absl::StrCat("--rate ", text, " is outside [",
                                                   plan::kLowestRate, ", ", plan::kHighestRate,
                                                   "] per second"));
  }
  return rate;
}

// The trace's rate and mean sizes, for whatever is no simulation.
absl::Status FillTrace(const PlanOptions& options, plan::PlanRequest& request) {
  if (options.trace.empty()) return absl::OkStatus();
  if (options.concurrency || !options.rate.empty()) {
    return absl::InvalidArgumentError(
        "--trace says when requests come: leave out --rate and --concurrency");
  }
  if (options.input || options.output) {
    return absl::InvalidArgumentError(
        "--trace says how long requests are: leave out --input and --output");
  }
  ASSIGN_OR_RETURN(request.trace, plan::LoadTrace(options.trace));
  ASSIGN_OR_RETURN(const plan::TraceSummary summary, plan::Summarize(request.trace));
  request.input_tokens = summary.input_tokens;
  request.output_tokens = summary.output_tokens;
  request.rate_per_s = summary.rate_per_s;
  if (options.context && *options.context < summary.longest) {
    return absl::InvalidArgumentError(absl::StrCat("--context ", *options.context,
                                                   " is less than the ", summary.longest,
                                                   " tokens of a request in ", options.trace));
  }
  request.context = std::max(request.context, summary.longest);
  return absl::OkStatus();
}

// What was named stays; the rest of a usual request is what the context leaves.
void FitUsualRequest(const PlanOptions& options, plan::PlanRequest& request) {
  const int64_t positions = request.model.architecture.max_position_embeddings;
  const auto most = static_cast<double>(options.context.value_or(positions));
  const double together = request.input_tokens + request.output_tokens;
  if (together <= most) return;
  if (!options.input && !options.output) {
    request.output_tokens = std::max(1.0, std::floor(most * request.output_tokens / together));
  }
  if (!options.input) {
    request.input_tokens = std::clamp(most - request.output_tokens, 1.0, request.input_tokens);
  } else if (!options.output) {
    request.output_tokens = std::clamp(most - request.input_tokens, 1.0, request.output_tokens);
  }
}

}  // namespace

absl::Status FillPlannedLoad(const PlanOptions& options, plan::PlanRequest& request) {
  if (options.concurrency && !options.rate.empty()) {
    return absl::InvalidArgumentError(
        "--concurrency and --rate contradict each other: one says how many requests there are, "
        "the other how many come");
  }
  request.input_tokens = options.input.value_or(request.input_tokens);
  request.output_tokens = options.output.value_or(request.output_tokens);
  FitUsualRequest(options, request);
  request.context = options.context.value_or(0);
  request.concurrency = options.concurrency.value_or(request.concurrency);
  ASSIGN_OR_RETURN(request.rate_per_s, ParseRate(options.rate));
  ASSIGN_OR_RETURN(request.ttft_p95_ms, ParseMilliseconds("--ttft-p95", options.ttft_p95));
  ASSIGN_OR_RETURN(request.tpot_p95_ms, ParseMilliseconds("--tpot-p95", options.tpot_p95));
  return FillTrace(options, request);
}

}  // namespace lockstep
