#include "launcher/bench/measurements.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/check.h"
#include "launcher/cli/values.h"

namespace lockstep {
namespace {

double PerSecond(int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
}

void AppendSummary(absl::string_view name, const Summary& summary, std::string& out) {
  absl::StrAppendFormat(&out, "%-12s %10.2f %10.2f %10.2f %10.2f %10.2f %10.2f\n", name,
                        summary.mean, summary.p50, summary.p90, summary.p95, summary.p99,
                        summary.max);
}

nlohmann::ordered_json SummaryJson(const Summary& summary) {
  return {{"count", summary.count}, {"mean", summary.mean}, {"p50", summary.p50},
          {"p90", summary.p90},     {"p95", summary.p95},   {"p99", summary.p99},
          {"max", summary.max}};
}

nlohmann::ordered_json LimitJson(double ms) {
  return ms > 0 ? nlohmann::ordered_json(ms) : nlohmann::ordered_json(nullptr);
}

}  // namespace

void RequestTimes::AddTokens(int64_t num_tokens, absl::Time now) {
  LS_CHECK_GE(num_tokens, 1);
  if (num_tokens_ == 0) {
    first_ = now;
    gaps_ms_.insert(gaps_ms_.end(), static_cast<size_t>(num_tokens - 1), 0.0f);
  } else {
    const double gap_ms = absl::ToDoubleMilliseconds(now - last_) / static_cast<double>(num_tokens);
    gaps_ms_.insert(gaps_ms_.end(), static_cast<size_t>(num_tokens), static_cast<float>(gap_ms));
  }
  last_ = now;
  num_tokens_ += num_tokens;
}

std::optional<double> RequestTimes::tpot_ms() const {
  if (num_tokens_ < 2) return std::nullopt;
  return absl::ToDoubleMilliseconds(last_ - first_) / static_cast<double>(num_tokens_ - 1);
}

bool ServiceLevel::IsMetBy(const RequestTimes& times) const {
  if (!times.has_tokens()) return false;
  if (ttft_ms > 0 && times.ttft_ms() > ttft_ms) return false;
  return tpot_ms <= 0 || times.tpot_ms().value_or(0.0) <= tpot_ms;
}

void Measurements::AddCompleted(const RequestTimes& times, int64_t num_prompt_tokens) {
  completed_.push_back(times);
  input_tokens_ += num_prompt_tokens;
}

void Measurements::AddFailed(const std::string& code, const std::string& reason) {
  ++errors_[code];
  first_reasons_.try_emplace(code, reason);
}

BenchReport Measurements::Report(const ServiceLevel& slo) const {
  BenchReport report;
  report.slo = slo;
  report.errors = errors_;
  report.first_reasons = first_reasons_;
  for (const auto& [code, count] : errors_) report.num_failed += count;
  report.num_completed = static_cast<int64_t>(completed_.size());
  report.input_tokens = input_tokens_;
  std::vector<double> ttft, tpot, itl, end_to_end;
  absl::Time begin = absl::InfiniteFuture();
  absl::Time end = absl::InfinitePast();
  for (const RequestTimes& times : completed_) {
    begin = std::min(begin, times.arrival());
    end = std::max(end, times.finished());
    report.output_tokens += times.num_tokens();
    end_to_end.push_back(times.end_to_end_ms());
    if (times.has_tokens()) ttft.push_back(times.ttft_ms());
    if (const auto value = times.tpot_ms()) tpot.push_back(*value);
    itl.insert(itl.end(), times.gaps_ms().begin(), times.gaps_ms().end());
    if (slo.IsMetBy(times)) ++report.num_within_slo;
  }
  if (!completed_.empty()) report.seconds = absl::ToDoubleSeconds(end - begin);
  report.ttft_ms = Summarize(std::move(ttft));
  report.tpot_ms = Summarize(std::move(tpot));
  report.itl_ms = Summarize(std::move(itl));
  report.end_to_end_ms = Summarize(std::move(end_to_end));
  return report;
}

std::string BenchReport::ToText() const {
  std::string out;
  absl::StrAppendFormat(&out, "requests     %d completed, %d failed in %s\n", num_completed,
                        num_failed, FormatSeconds(seconds));
  for (const auto& [code, count] : errors) {
    absl::StrAppendFormat(&out, "  %s: %d, the first: %s\n", code, count,
                          OneLine(first_reasons.at(code)));
  }
  absl::StrAppendFormat(
      &out, "throughput   %.2f requests/s, %.1f output tokens/s, %.1f tokens/s in all\n",
      PerSecond(num_completed, seconds), PerSecond(output_tokens, seconds),
      PerSecond(input_tokens + output_tokens, seconds));
  if (slo.is_set()) {
    absl::StrAppendFormat(&out, "goodput      %.2f requests/s within the SLO (%d of %d)\n",
                          PerSecond(num_within_slo, seconds), num_within_slo,
                          num_completed + num_failed);
  }
  absl::StrAppendFormat(&out, "\n%-12s %10s %10s %10s %10s %10s %10s\n", "ms", "mean", "p50", "p90",
                        "p95", "p99", "max");
  AppendSummary("TTFT", ttft_ms, out);
  AppendSummary("TPOT", tpot_ms, out);
  AppendSummary("ITL", itl_ms, out);
  AppendSummary("end to end", end_to_end_ms, out);
  return out;
}

nlohmann::ordered_json BenchReport::ToJson() const {
  nlohmann::ordered_json reasons = nlohmann::ordered_json::object();
  for (const auto& [code, reason] : first_reasons) reasons[code] = ValidUtf8(reason);
  nlohmann::ordered_json json = {
      {"num_completed", num_completed},
      {"num_failed", num_failed},
      {"errors", errors},
      {"first_reasons", reasons},
      {"seconds", seconds},
      {"input_tokens", input_tokens},
      {"output_tokens", output_tokens},
      {"requests_per_second", PerSecond(num_completed, seconds)},
      {"output_tokens_per_second", PerSecond(output_tokens, seconds)},
      {"total_tokens_per_second", PerSecond(input_tokens + output_tokens, seconds)},
      {"ttft_ms", SummaryJson(ttft_ms)},
      {"tpot_ms", SummaryJson(tpot_ms)},
      {"itl_ms", SummaryJson(itl_ms)},
      {"end_to_end_ms", SummaryJson(end_to_end_ms)}};
  if (slo.is_set()) {
    json["goodput"] = {{"requests_per_second", PerSecond(num_within_slo, seconds)},
                       {"num_within_slo", num_within_slo},
                       {"slo_ttft_ms", LimitJson(slo.ttft_ms)},
                       {"slo_tpot_ms", LimitJson(slo.tpot_ms)}};
  }
  return json;
}

nlohmann::ordered_json Measurements::EachToJson() const {
  std::vector<const RequestTimes*> order;
  for (const RequestTimes& times : completed_) order.push_back(&times);
  std::stable_sort(order.begin(), order.end(), [](const RequestTimes* a, const RequestTimes* b) {
    return a->arrival() < b->arrival();
  });
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const RequestTimes* times : order) {
    nlohmann::ordered_json each = {
        {"arrival_s", absl::ToDoubleSeconds(times->arrival() - order.front()->arrival())},
        {"output_tokens", times->num_tokens()},
        {"ttft_ms", times->ttft_ms()},
        {"end_to_end_ms", times->end_to_end_ms()}};
    if (const auto tpot = times->tpot_ms()) each["tpot_ms"] = *tpot;
    all.push_back(std::move(each));
  }
  return all;
}

}  // namespace lockstep
