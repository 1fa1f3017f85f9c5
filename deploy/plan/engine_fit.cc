#include "deploy/plan/engine_fit.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/types/span.h"
#include "deploy/plan/least_squares.h"
#include "kernels/base/quantile.h"

namespace lockstep::plan {
namespace {

// A coefficient, and how far (in logarithms, one standard deviation) it may be from its start
// before measurements must insist.
struct Free {
  double EngineProfile::*field;
  double spread;
};
constexpr std::array<Free, 10> kFree = {{{&EngineProfile::weight_bandwidth, 0.10},
                                         {&EngineProfile::kv_bandwidth, 0.15},
                                         {&EngineProfile::flops_16, 0.15},
                                         {&EngineProfile::flops_8, 0.15},
                                         {&EngineProfile::flops_4, 0.30},
                                         {&EngineProfile::step_us, 0.5},
                                         {&EngineProfile::layer_us, 0.4},
                                         {&EngineProfile::sequence_us, 1.0},
                                         {&EngineProfile::prefill_layer_us, 0.5},
                                         {&EngineProfile::request_ms, 1.0}}};
// What experts and latents add, fitted when the rest stands.
constexpr std::array<Free, 4> kFreeOfExperts = {{{&EngineProfile::routing_spread, 0.15},
                                                 {&EngineProfile::moe_layer_us, 0.5},
                                                 {&EngineProfile::moe_prefill_layer_us, 0.7},
                                                 {&EngineProfile::latent_layer_us, 0.7}}};
constexpr double kPriorWeight = 0.06;
constexpr double kTtftWeight = 0.4;  // first tokens scatter more than two times as much
constexpr double kScale = 0.07;
// Beside decoding no engine computes prompts at more than this share of the datasheet's rate:
// faster answers had prompts in a prefix cache, and say nothing about rates.
constexpr double kMaxPromptFlopsShare = 0.45;
constexpr double kStartBurst = 0.12;
constexpr double kStartSlot = 0.05;

// x: the free coefficients, then two of every version whose benchmark start does not know.
EngineFit Unpack(const EngineFit& start, absl::Span<const Free> free_fields,
                 const std::vector<std::string>& versions, const std::vector<double>& x) {
  EngineFit fit = start;
  size_t next = 0;
  for (const Free& free : free_fields) fit.profile.*free.field *= std::exp(x[next++] * free.spread);
  for (const std::string& version : versions) {
    LoadPattern pattern;
    pattern.name = version;
    pattern.burst_share = kStartBurst * std::exp(x[next++]);
    pattern.slot_share = kStartSlot * std::exp(x[next++]);
    fit.patterns[version] = pattern;
  }
  return fit;
}

LoadPattern PatternOf(const EngineFit& fit, const Measurement& measurement) {
  const auto found = fit.patterns.find(measurement.engine_version);
  if (found != fit.patterns.end()) return found->second;
  return {"", kStartBurst, 0.0};  // a benchmark never seen
}

bool IsSaturated(const MeasuredCase& measured) {
  return measured.measurement().concurrency > static_cast<double>(measured.max_requests());
}

EngineFit FitFields(const EngineFit& start, absl::Span<const Free> free_fields,
                    const std::vector<MeasuredCase>& cases) {
  std::vector<std::string> versions;
  for (const MeasuredCase& measured : cases) {
    const std::string& version = measured.measurement().engine_version;
    if (start.patterns.count(version) == 0 &&
        std::find(versions.begin(), versions.end(), version) == versions.end()) {
      versions.push_back(version);
    }
  }
  const Residuals residuals = [&](const std::vector<double>& x) {
    const EngineFit fit = Unpack(start, free_fields, versions, x);
    std::vector<double> out;
    for (const MeasuredCase& measured : cases) {
      if (IsSaturated(measured) || measured.PromptFlopsShare() > kMaxPromptFlopsShare) continue;
      const Measurement& row = measured.measurement();
      const Prediction prediction = measured.PredictWith(fit.profile, PatternOf(fit, row));
      out.push_back(std::log(prediction.tpot_ms / row.tpot_ms));
      out.push_back(kTtftWeight * std::log(prediction.ttft_ms / row.ttft_ms));
    }
    for (const double value : x) out.push_back(kPriorWeight * value);
    return out;
  };
  const std::vector<double> zero(free_fields.size() + 2 * versions.size(), 0.0);
  return Unpack(start, free_fields, versions, MinimizeResiduals(residuals, zero, kScale));
}

}  // namespace

EngineFit FitEngine(const EngineProfile& start, const std::vector<MeasuredCase>& cases) {
  return FitFields({start, {}}, kFree, cases);
}

EngineFit FitExperts(const EngineFit& start, const std::vector<MeasuredCase>& cases) {
  return FitFields(start, kFreeOfExperts, cases);
}

Accuracy AccuracyOf(const EngineFit& fit, const std::vector<MeasuredCase>& cases) {
  std::vector<double> tpot;
  std::vector<double> ttft;
  for (const MeasuredCase& measured : cases) {
    if (IsSaturated(measured)) continue;
    const Measurement& row = measured.measurement();
    const Prediction prediction = measured.PredictWith(fit.profile, PatternOf(fit, row));
    tpot.push_back(std::abs(prediction.tpot_ms / row.tpot_ms - 1.0));
    ttft.push_back(std::abs(prediction.ttft_ms / row.ttft_ms - 1.0));
  }
  std::sort(tpot.begin(), tpot.end());
  std::sort(ttft.begin(), ttft.end());
  return {static_cast<int>(tpot.size()), Quantile(tpot, 0.5), Quantile(tpot, 0.9),
          Quantile(ttft, 0.5), Quantile(ttft, 0.9)};
}

CollectiveFit FitAllReduce(int ranks, double link_gb_s,
                           const std::vector<MeasuredAllReduce>& measured) {
  const auto unpack = [&](const std::vector<double>& x) {
    return CollectiveFit{ranks, 4.0 * std::exp(x[0]), 0.5 * link_gb_s * std::exp(x[1]),
                         10.0 * std::exp(x[2]), 0.7 * link_gb_s * std::exp(x[3])};
  };
  const Residuals residuals = [&](const std::vector<double>& x) {
    const CollectiveFit fit = unpack(x);
    std::vector<double> out;
    for (const MeasuredAllReduce& row : measured) {
      out.push_back(std::log(IntraNodeSeconds(fit, row.bytes) / row.seconds));
    }
    for (const double value : x) out.push_back(kPriorWeight * value);
    return out;
  };
  return unpack(MinimizeResiduals(residuals, {0.0, 0.0, 0.0, 0.0}, 0.2));
}

}  // namespace lockstep::plan
