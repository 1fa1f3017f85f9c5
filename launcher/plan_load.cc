// The load and the limits of `lockstep plan`, for GPUs and for this host.
#include <algorithm>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "deploy/plan/arrivals.h"
#include "kernels/base/status_macros.h"
#include "launcher/plan_options.h"

namespace lockstep {
namespace {

// "2s", "50ms", "50": milliseconds.
absl::StatusOr<double> ParseMilliseconds(const char* flag, const std::string& text) {
  if (text.empty()) return 0.0;
  absl::string_view number = text;
  double scale = 1.0;
  if (!absl::ConsumeSuffix(&number, "ms") && absl::ConsumeSuffix(&number, "s")) scale = 1e3;
  double value = 0.0;
  if (!absl::SimpleAtod(number, &value) || !(value > 0) || value > 1e9) {
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
  if (!absl::SimpleAtod(number, &value) || !(value > 0) || value > 1e6) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rate ", text, " is not a rate above zero like 2/s or 120/min"));
  }
  return value * scale;
}

// The trace's rate and mean sizes, for whatever is no simulation.
absl::Status FillTrace(const PlanOptions& options, plan::PlanRequest& request) {
  if (options.trace.empty()) return absl::OkStatus();
  if (options.concurrency || !options.rate.empty()) {
    return absl::InvalidArgumentError(
        "--trace says when requests come: leave out --rate and --concurrency");
  }
  ASSIGN_OR_RETURN(request.trace, plan::LoadTrace(options.trace));
  ASSIGN_OR_RETURN(const plan::TraceSummary summary, plan::Summarize(request.trace));
  request.input_tokens = summary.input_tokens;
  request.output_tokens = summary.output_tokens;
  request.rate_per_s = summary.rate_per_s;
  request.context = std::max(request.context, summary.longest);
  return absl::OkStatus();
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
  request.context = options.context.value_or(0);
  request.concurrency = options.concurrency.value_or(request.concurrency);
  ASSIGN_OR_RETURN(request.rate_per_s, ParseRate(options.rate));
  ASSIGN_OR_RETURN(request.ttft_p95_ms, ParseMilliseconds("--ttft-p95", options.ttft_p95));
  ASSIGN_OR_RETURN(request.tpot_p95_ms, ParseMilliseconds("--tpot-p95", options.tpot_p95));
  return FillTrace(options, request);
}

}  // namespace lockstep
