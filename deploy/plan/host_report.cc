#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "deploy/plan/host_plan.h"
#include "deploy/plan/report.h"
#include "deploy/plan/units.h"
#include "nlohmann/json.hpp"

namespace lockstep::plan {
namespace {

using nlohmann::ordered_json;

constexpr double kGibi = 0x1p30;

std::string Size(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  return value < kGibi ? BinarySize(bytes) : absl::StrFormat("%.2f GiB", value / kGibi);
}

std::string LayoutName(const HostCandidate& candidate) {
  return absl::StrFormat("tp %d x pp %d, %d thread%s per rank", candidate.layout.tp,
                         candidate.layout.pp, candidate.threads_per_rank,
                         candidate.threads_per_rank == 1 ? "" : "s");
}

std::string Speed(const HostCandidate& candidate) {
  if (!candidate.prediction) return "speed unknown";
  const Prediction& prediction = *candidate.prediction;
  const bool is_full = prediction.saturated && !candidate.queue;
  return absl::StrFormat("TPOT %.1f ms, TTFT %.0f ms, %.1f tokens/s%s", prediction.tpot_ms,
                         prediction.ttft_ms, prediction.output_tokens_per_s,
                         is_full ? ", KV cache full" : "");
}

std::string LoadName(const HostPlanRequest& request) {
  if (request.arrivals.rate_per_s > 0) {
    return absl::StrFormat("%.3g requests/s", request.arrivals.rate_per_s);
  }
  return absl::StrFormat("%.0f request%s", request.concurrency,
                         request.concurrency == 1 ? "" : "s at the same time");
}

std::string Band(double value, double share) {
  return absl::StrFormat("%.0f to %.0f", value * (1.0 - share), value * (1.0 + share));
}

void AddSpeed(const HostPlan& plan, std::string& out) {
  const HostPlanRequest& request = plan.request;
  const HostCandidate& answer = plan.answer();
  if (!answer.prediction) {
    absl::StrAppendFormat(&out, "Speed     unknown, %s: run `lockstep plan --calibrate`\n",
                          plan.no_speed);
    return;
  }
  absl::StrAppendFormat(&out, "Speed     %s with %s of %.0f tokens in, %.0f out\n", Speed(answer),
                        LoadName(request), request.arrivals.input_tokens,
                        request.arrivals.output_tokens);
  const StepCost& step = answer.prediction->decode_step;
  absl::StrAppendFormat(&out,
                        "          a decode step of the slowest stage %.2f ms: weights %.2f, LM "
                        "head %.2f, KV %.2f, all-reduce %.2f, overheads %.2f\n",
                        step.total() * 1e3, step.linear * 1e3, step.lm_head * 1e3,
                        step.kv_read * 1e3, step.communication * 1e3, step.overhead * 1e3);
  absl::StrAppendFormat(
      &out, "          expect TPOT %s ms and TTFT %s ms as long as the host is as idle\n",
      Band(answer.prediction->tpot_ms, kHostTpotBand),
      Band(answer.prediction->ttft_ms, kHostTtftBand));
  if (answer.queue) out += QueueText(*answer.queue);
  if (!answer.broken.empty()) absl::StrAppend(&out, "Too much  ", answer.broken, "\n");
}

void AddLayouts(const HostPlan& plan, std::string& out) {
  if (plan.candidates.size() < 2) return;
  out += "\nLayouts considered\n";
  for (const HostCandidate& candidate : plan.candidates) {
    absl::StrAppendFormat(&out, "  %-34s  %s%s%s\n", LayoutName(candidate), Speed(candidate),
                          candidate.broken.empty() ? "" : "; " + candidate.broken,
                          &candidate == &plan.answer() ? "  chosen" : "");
  }
}

void AddSources(const HostPlan& plan, std::string& out) {
  absl::StrAppendFormat(&out, "\nSources\n  model    %s\n  memory   what this host has available\n",
                        plan.request.model.source);
  if (!plan.request.profile) return;
  const HostProfile& profile = *plan.request.profile;
  absl::StrAppendFormat(&out,
                        "  speed    %s (%s, %d core%s): matrices, KV cache, attention, layers, "
                        "links between ranks, serving\n",
                        profile.source(), profile.backend, profile.cores,
                        profile.cores == 1 ? "" : "s");
}

ordered_json CandidateJson(const HostCandidate& candidate) {
  ordered_json out = {{"tp", candidate.layout.tp},
                      {"pp", candidate.layout.pp},
                      {"threads_per_rank", candidate.threads_per_rank},
                      {"weight_bytes", candidate.memory.weight_bytes},
                      {"kv_bytes_per_token", candidate.memory.kv_bytes_per_token},
                      {"num_kv_blocks", candidate.memory.num_kv_blocks}};
  if (!candidate.prediction) return out;
  const Prediction& speed = *candidate.prediction;
  out["ttft_ms"] = speed.ttft_ms;
  out["tpot_ms"] = speed.tpot_ms;
  out["ttft_p95_ms"] = speed.ttft_p95_ms;
  out["tpot_p95_ms"] = speed.tpot_p95_ms;
  out["output_tokens_per_s"] = speed.output_tokens_per_s;
  out["saturated"] = speed.saturated;
  out["holds"] = candidate.broken.empty();
  out["reason"] = candidate.broken;
  if (candidate.queue) out["queue"] = QueueJson(*candidate.queue);
  const StepCost& step = speed.decode_step;
  out["decode_step_ms"] = {{"linear", step.linear * 1e3},
                           {"lm_head", step.lm_head * 1e3},
                           {"kv_read", step.kv_read * 1e3},
                           {"communication", step.communication * 1e3},
                           {"overhead", step.overhead * 1e3}};
  return out;
}

}  // namespace

std::string HostPlanText(const HostPlan& plan) {
  const HostPlanRequest& request = plan.request;
  const HostCandidate& answer = plan.answer();
  std::string out;
  absl::StrAppendFormat(&out, "Layout    %s\n", LayoutName(answer));
  absl::StrAppendFormat(&out, "Memory    %s of weights over %d rank%s, %s available on this host\n",
                        Size(answer.memory.weight_bytes), answer.layout.ranks(),
                        answer.layout.ranks() == 1 ? "" : "s", Size(request.available_bytes));
  absl::StrAppendFormat(&out,
                        "KV cache  %d blocks of %d tokens, %s each: what `lockstep serve --tp %d "
                        "--pp %d` allocates\n",
                        answer.memory.num_kv_blocks, request.memory.block_size,
                        Size(answer.memory.kv_bytes_per_token * request.memory.block_size),
                        answer.layout.tp, answer.layout.pp);
  AddSpeed(plan, out);
  AddLayouts(plan, out);
  AddSources(plan, out);
  return out;
}

std::string HostPlanJson(const HostPlan& plan) {
  const HostPlanRequest& request = plan.request;
  ordered_json out = CandidateJson(plan.answer());
  out["tpot_band"] = kHostTpotBand;
  out["ttft_band"] = kHostTtftBand;
  out["available_bytes"] = request.available_bytes;
  out["input_tokens"] = request.arrivals.input_tokens;
  out["output_tokens"] = request.arrivals.output_tokens;
  if (request.arrivals.rate_per_s > 0) {
    out["rate_per_s"] = request.arrivals.rate_per_s;
  } else {
    out["concurrency"] = request.concurrency;
  }
  out["layouts"] = ordered_json::array();
  for (const HostCandidate& candidate : plan.candidates) {
    out["layouts"].push_back(CandidateJson(candidate));
  }
  out["sources"] = {{"model", request.model.source}};
  if (request.profile) {
    out["sources"]["speed"] = request.profile->source();
  } else {
    out["sources"]["speed"] = nullptr;
  }
  return out.dump(1) + "\n";
}

}  // namespace lockstep::plan
