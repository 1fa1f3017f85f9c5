#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "deploy/plan/collectives.h"
#include "deploy/plan/gpu_calibration.h"
#include "deploy/plan/report.h"
#include "deploy/plan/units.h"

namespace lockstep::plan {
namespace {

std::string Grouped(int64_t count) {
  const std::string digits = absl::StrCat(count);
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped.push_back(',');
    grouped.push_back(digits[i]);
  }
  return grouped;
}

std::string LayoutName(const Layout& layout) {
  std::string name = absl::StrFormat("tp %d x pp %d", layout.tp, layout.pp);
  if (layout.replicas > 1) absl::StrAppend(&name, " x ", layout.replicas, " replicas");
  return name;
}

std::string Dollars(std::optional<double> usd) {
  return usd ? absl::StrFormat("$%.2f", *usd) : "no price";
}

std::string Plural(int count, const char* noun) {
  return absl::StrFormat("%d %s%s", count, noun, count == 1 ? "" : "s");
}

void AddLoad(const PlanRequest& request, std::string& out) {
  const std::string load =
      request.rate_per_s > 0
          ? absl::StrFormat("%g requests/s", request.rate_per_s)
          : absl::StrFormat("%.0f requests at the same time", request.concurrency);
  absl::StrAppendFormat(&out, "Load      %s, %.0f tokens in, %.0f out; longest request %s tokens\n",
                        load, request.input_tokens, request.output_tokens,
                        Grouped(request.longest_request()));
}

void AddLaunch(const Plan& plan, std::string& out) {
  if (!plan.not_served.empty()) {
    absl::StrAppendFormat(&out, "Launch    none: `serve` %s\n", plan.not_served);
    out += "          (speeds and memory are those of the engine named below)\n";
    return;
  }
  absl::StrAppendFormat(&out, "Launch    %s\n", LaunchCommand(plan));
  if (plan.request.engine.name == kOwnEngine) {
    out +=
        "          (speeds are those of `serve`, from the calibration named below; what is left "
        "for "
        "KV its ranks measure)\n";
  } else {
    out +=
        "          (speeds and memory are those of the engine named below; speeds of `serve` were "
        "measured on CPUs only, and what is left for KV its ranks measure)\n";
  }
}

// What each token costs with the change, where that is known: the answer has the fewest GPUs, which
// need not be those that make the most of their hours.
std::string PerToken(const Plan& plan, const Relaxation& changed) {
  const Candidate& now = *plan.answer();
  if (IsCheaperPerToken(plan, changed)) {
    if (!changed.usd_per_million_tokens) return "";
    return absl::StrFormat(", %s instead of %s per million tokens",
                           Dollars(changed.usd_per_million_tokens),
                           Dollars(now.usd_per_million_tokens));
  }
  std::string text = absl::StrFormat(
      "; a token costs more:\n          %s instead of %s: TPOT %.1f ms instead of %.1f, %.0f "
      "tokens/s instead of %.0f",
      LayoutName(changed.layout), LayoutName(now.layout), changed.tpot_ms, SpeedOf(plan).tpot_ms,
      changed.output_tokens_per_s, now.output_tokens_per_s);
  if (changed.usd_per_million_tokens) {
    absl::StrAppendFormat(&text, ", %s instead of %s per million",
                          Dollars(changed.usd_per_million_tokens),
                          Dollars(now.usd_per_million_tokens));
  }
  return text;
}

// Lines of one kind that follow each other have its name once.
void AddRelaxations(const Plan& plan, std::string& out) {
  const bool has_answer = plan.answer() != nullptr;
  if (plan.relaxations.empty()) {
    out += has_answer
               ? "Cheaper   no single change of formats, context, load or limits needs fewer GPUs\n"
               : "Possible  no single change of nodes, formats, context, load or limits would do\n";
  }
  std::string last;
  for (size_t i = 0; i < std::min<size_t>(3, plan.relaxations.size()); ++i) {
    const Relaxation& relaxation = plan.relaxations[i];
    const std::string name = !has_answer                           ? "Possible"
                             : IsCheaperPerToken(plan, relaxation) ? "Cheaper"
                                                                   : "Fewer";
    absl::StrAppendFormat(&out, "%-9s %s: %s, %s per hour", name == last ? "  or" : name,
                          relaxation.change, Plural(relaxation.gpus, "GPU"),
                          Dollars(relaxation.usd_per_hour));
    last = name;
    if (plan.request.rate_per_s > 0 && !relaxation.is_simulated) out += ", by formula";
    // Of a plan for another engine it does not matter.
    if (plan.not_served.empty() && !relaxation.not_served.empty()) {
      absl::StrAppendFormat(&out, ", but `serve` %s", relaxation.not_served);
    }
    if (has_answer) out += PerToken(plan, relaxation);
    out.push_back('\n');
  }
}

void AddAnswer(const Plan& plan, std::string& out) {
  const PlanRequest& request = plan.request;
  const Candidate* answer = plan.answer();
  if (answer == nullptr) {
    absl::StrAppendFormat(&out, "Answer    none within %s of %d: %s\n",
                          Plural(request.max_nodes, "node"), request.gpus_per_node,
                          plan.binding == Constraint::kNone ? "no layout divides the model"
                                                            : ConstraintName(plan.binding));
  } else {
    absl::StrAppendFormat(&out,
                          "Answer    %s %s on %s: %s; %s per hour, %s per million output tokens\n",
                          Plural(answer->reserved_gpus, "GPU"), request.gpu.name,
                          Plural(answer->nodes, "node"), LayoutName(answer->layout),
                          Dollars(answer->usd_per_hour), Dollars(answer->usd_per_million_tokens));
    const ServedSpeed speed = SpeedOf(plan);
    absl::StrAppendFormat(
        &out, "Speed     TTFT %.0f ms (p95 %.0f), TPOT %.1f ms (p95 %.1f), %.0f tokens/s in all\n",
        speed.ttft_ms, speed.ttft_p95_ms, speed.tpot_ms, speed.tpot_p95_ms,
        answer->output_tokens_per_s);
    if (plan.queue) out += QueueText(*plan.queue);
    AddLaunch(plan, out);
  }
  if (plan.binding != Constraint::kNone) {
    absl::StrAppendFormat(&out, "Binding   %s (%s)\n", ConstraintName(plan.binding),
                          plan.binding_reason);
  } else {
    out += "Binding   nothing: no smaller plan exists\n";
  }
  AddRelaxations(plan, out);
}

// How long an all-reduce across nodes may take before the group inside nodes is faster.
double BreakEvenAllReduceUs(const PlanRequest& request, const Prediction& inside,
                            const Prediction& across) {
  const double communication_ms = across.decode_step.communication * 1e3;
  const double num_all_reduces = 2.0 * static_cast<double>(request.model.architecture.num_layers);
  return (inside.tpot_ms - across.tpot_ms + communication_ms) / num_all_reduces * 1e3;
}

// By formula alone, where there is a queue to simulate.
bool IsPromised(const PlanRequest& request, const Candidate& candidate) {
  return candidate.holds && request.rate_per_s > 0 && !candidate.is_simulated;
}

// Other layouts of as many GPUs that win something, and what they lose.
void AddTradeOffs(const Plan& plan, std::string& out) {
  constexpr double kWorthSaying = 0.02;
  const Candidate* answer = plan.answer();
  if (answer == nullptr) return;
  for (const Candidate& other : plan.candidates) {
    if (!other.holds || &other == answer || IsPromised(plan.request, other)) continue;
    if (other.reserved_gpus != answer->reserved_gpus) continue;
    const Prediction& a = answer->prediction;
    const Prediction& b = other.prediction;
    const double tpot = a.tpot_ms > 0 ? b.tpot_ms / a.tpot_ms - 1 : 0;
    const double ttft = b.ttft_ms / a.ttft_ms - 1;
    const double rate = other.output_tokens_per_s / answer->output_tokens_per_s - 1;
    if (tpot > -kWorthSaying && ttft > -kWorthSaying && rate < kWorthSaying) continue;
    absl::StrAppendFormat(
        &out, "Instead   %s: TPOT %.1f ms (%+.0f %%), TTFT %.0f ms (%+.0f %%), %+.0f %% tokens/s\n",
        LayoutName(other.layout), b.tpot_ms, 100 * tpot, b.ttft_ms, 100 * ttft, 100 * rate);
    if (!other.tp_across_nodes) continue;
    absl::StrAppendFormat(
        &out,
        "          its all-reduces cross nodes: %.0f us each are predicted, below %.0f us its TPOT "
        "is the better one\n",
        b.decode_step.communication * 1e6 /
            (2.0 * static_cast<double>(plan.request.model.architecture.num_layers)),
        BreakEvenAllReduceUs(plan.request, a, b));
  }
}

// What costs more GPUs, but so much less a token that it may be what is wanted.
void AddFaster(const Plan& plan, std::string& out) {
  constexpr double kMuchCheaper = 0.75;
  const Candidate* answer = plan.answer();
  if (answer == nullptr || plan.request.rate_per_s > 0) return;
  const auto gpus_per_rate = [](const Candidate& candidate) {
    return candidate.reserved_gpus / candidate.output_tokens_per_s;
  };
  const Candidate* best = answer;
  for (const Candidate& other : plan.candidates) {
    if (!other.holds || other.reserved_gpus > 2 * answer->reserved_gpus) continue;
    if (gpus_per_rate(other) < gpus_per_rate(*best)) best = &other;
  }
  const double cost = gpus_per_rate(*best) / gpus_per_rate(*answer);
  if (cost > kMuchCheaper) return;
  absl::StrAppendFormat(
      &out, "Faster    %s: %s: %.0f tokens/s (%+.0f %%), TPOT %.1f ms, %s per million (%+.0f %%)\n",
      Plural(best->reserved_gpus, "GPU"), LayoutName(best->layout), best->output_tokens_per_s,
      100 * (best->output_tokens_per_s / answer->output_tokens_per_s - 1), best->prediction.tpot_ms,
      Dollars(best->usd_per_million_tokens), 100 * (cost - 1));
}

void AddMemory(const Plan& plan, std::string& out) {
  const Candidate* answer = plan.answer();
  if (answer == nullptr) return;
  const PlanRequest& request = plan.request;
  absl::StrAppendFormat(&out,
                        "\nMemory per rank, GiB of the %.2f that the driver reports "
                        "(utilization %.2f)\n",
                        request.gpu.memory_gib, request.memory.utilization);
  out +=
      "  stage  layers   ranks    layers  experts  embed  LM head  activ.  comm.  runtime  "
      "reserve  for KV  KV/token\n";
  for (const StageMemory& stage : answer->memory.stages) {
    const RankWeights& weights = stage.weights;
    absl::StrAppendFormat(
        &out,
        "  %5d  %3d-%-3d  %3d-%-3d  %7.2f  %7.2f  %5.2f  %7.2f  %6.2f  %5.2f  %7.2f  %7.2f  "
        "%6.2f  %4.1f KiB\n",
        stage.stage, weights.layers.begin, weights.layers.end - 1, stage.first_rank,
        stage.first_rank + answer->layout.tp - 1, GiB(weights.layer_bytes),
        GiB(weights.expert_bytes), GiB(weights.embedding_bytes), GiB(weights.lm_head_bytes),
        GiB(stage.activations), GiB(stage.communication), GiB(stage.runtime), GiB(stage.reserve),
        GiB(stage.kv_budget), static_cast<double>(stage.kv_bytes_per_token) / 1024);
  }
  absl::StrAppendFormat(
      &out, "  %s KV blocks of %d tokens on every rank; %s requests of %.0f tokens, or one of %s\n",
      Grouped(answer->memory.num_kv_blocks), request.memory.block_size,
      Grouped(answer->memory.max_requests), request.input_tokens + request.output_tokens,
      Grouped(answer->memory.max_request_tokens));
}

void AddLayouts(const Plan& plan, std::string& out) {
  absl::StrAppendFormat(&out, "\nLayouts considered: %d\n", plan.candidates.size());
  out += "  GPUs  layout                     verdict\n";
  for (const Candidate& candidate : plan.candidates) {
    std::string verdict;
    if (candidate.holds) {
      verdict = absl::StrFormat(
          "%s  TPOT %.1f ms, TTFT %.0f ms, %s per million tokens",
          &candidate == plan.answer() ? "chosen:" : "holds: ", candidate.prediction.tpot_ms,
          candidate.prediction.ttft_ms, Dollars(candidate.usd_per_million_tokens));
      if (candidate.tp_across_nodes) verdict += "; tp crosses nodes";
      if (IsPromised(plan.request, candidate)) verdict += "; by formula";
    } else {
      verdict = absl::StrCat("no:      ", candidate.reason);
    }
    absl::StrAppendFormat(&out, "  %4d  %-25s  %s\n", candidate.layout.gpus(),
                          LayoutName(candidate.layout), verdict);
  }
}

void AddSpeed(const Plan& plan, std::string& out) {
  const Candidate* answer = plan.answer();
  if (answer == nullptr) return;
  const EngineProfile& engine = plan.request.engine;
  const Prediction& speed = answer->prediction;
  const StepCost& step = speed.decode_step;
  const auto band = [](double value, double share) {
    return absl::StrFormat("%.3g (%.3g to %.3g)", value, value / (1 + share), value * (1 + share));
  };
  absl::StrAppendFormat(&out, "\nSpeed of one replica at %.1f requests, as %s reaches it\n",
                        answer->load_per_replica, engine.name);
  absl::StrAppendFormat(&out, "  TTFT %s ms, TPOT %s ms, %.0f tokens/s, prompts take %.0f %%\n",
                        band(speed.ttft_ms, plan.request.ttft_band()),
                        band(speed.tpot_ms, plan.request.tpot_band()), speed.output_tokens_per_s,
                        100 * speed.utilization);
  absl::StrAppendFormat(
      &out,
      "  a decode step of the slowest stage %.2f ms: weights %.2f, LM head %.2f, KV %.2f, "
      "activations %.2f, all-reduce %.2f, overheads %.2f; most goes to %s\n",
      step.total() * 1e3, step.linear * 1e3, step.lm_head * 1e3, step.kv_read * 1e3,
      step.activations * 1e3, step.communication * 1e3, step.overhead * 1e3, step.largest());
}

void AddSources(const PlanRequest& request, std::string& out) {
  absl::StrAppendFormat(&out, "\nSources\n  model    %s\n", request.model.source);
  for (const auto& [field, source] : request.gpu.sources) {
    absl::StrAppendFormat(&out, "  %-16s %s\n", field, source);
  }
  absl::StrAppendFormat(
      &out, "  all-reduce       %s\n",
      InterconnectOf(request.gpu, request.gpus_per_node, request.engine.links).source);
  absl::StrAppendFormat(&out, "  engine           %s: %s\n", request.engine.name,
                        request.engine.source);
  if (request.usd_per_gpu_hour) {
    absl::StrAppendFormat(&out, "  price            $%.2f per GPU-hour, %s\n",
                          *request.usd_per_gpu_hour, request.price_source);
  }
}

}  // namespace

ServedSpeed SpeedOf(const Plan& plan) {
  if (plan.queue) {
    return {plan.queue->ttft_p50_ms, plan.queue->ttft_p95_ms, plan.queue->tpot_p50_ms,
            plan.queue->tpot_p95_ms};
  }
  const Prediction& speed = plan.answer()->prediction;
  return {speed.ttft_ms, speed.ttft_p95_ms, speed.tpot_ms, speed.tpot_p95_ms};
}

bool IsCheaperPerToken(const Plan& plan, const Relaxation& relaxation) {
  const Candidate& now = *plan.answer();
  return relaxation.gpus * now.output_tokens_per_s <=
         now.reserved_gpus * relaxation.output_tokens_per_s;
}

std::string QueueText(const QueueResult& queue) {
  return absl::StrFormat(
      "Queueing  TTFT p50 %.0f, p95 %.0f ms, TPOT p50 %.1f, p95 %.1f ms, %d preemptions in %s "
      "to %s, simulated with the engine's scheduler%s%s\n",
      queue.ttft_p50_ms, queue.ttft_p95_ms, queue.tpot_p50_ms, queue.tpot_p95_ms,
      queue.num_preemptions, Plural(queue.num_requests, "request"),
      queue.num_replicas == 1 ? "a replica" : Plural(queue.num_replicas, "replica"),
      queue.num_left_out > 0 ? absl::StrCat("; ", Grouped(queue.num_left_out),
                                            " of the trace that follow are left out")
                             : "",
      queue.is_steady ? "" : "; still filling up: in the long run they wait longer");
}

std::string PlanText(const Plan& plan) {
  const PlanRequest& request = plan.request;
  const Architecture& model = request.model.architecture;
  std::string out;
  AddAnswer(plan, out);
  AddTradeOffs(plan, out);
  AddFaster(plan, out);
  const double active = static_cast<double>(model.num_active_parameters()) * 1e-9;
  absl::StrAppendFormat(&out, "\nModel     %s: %.2f billion parameters%s, weights %s %s, KV %s\n",
                        request.model.name, static_cast<double>(model.num_parameters()) * 1e-9,
                        model.experts ? absl::StrFormat(" (%.1f active)", active) : "",
                        request.weights.name, DecimalSize(TotalWeightBytes(model, request.weights)),
                        request.kv.name);
  AddLoad(request, out);
  AddMemory(plan, out);
  AddLayouts(plan, out);
  AddSpeed(plan, out);
  AddSources(request, out);
  return out;
}

}  // namespace lockstep::plan
