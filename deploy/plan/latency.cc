#include "deploy/plan/latency.h"

#include <algorithm>
#include <cmath>

#include "deploy/plan/units.h"

namespace lockstep::plan {
namespace {

constexpr int kMaxIterations = 40;
constexpr double kConverged = 1e-6;
constexpr double kMaxUtilization = 0.95;  // beyond it a queue's length is anyone's guess
// A 95th percentile of an exponential tail, in means.
constexpr double kP95OverMean = 3.0;

struct Prefill {
  double num_chunks = 1;
  double prompts = 1;      // that its step has
  double first_token = 0;  // seconds from the first chunk to the token
  double added = 0;        // by which a stage takes longer than decodes alone, for its chunks
};

// Prompts whose tokens a step has room for beside each other.
double MostPromptsPerStep(const EngineProfile& engine, const Load& load) {
  return std::max(1.0, engine.max_batched_tokens / load.input_tokens);
}

// Prompts of a step that has any, when requests start independently and `mean` of them during a
// step (Poisson).
double PromptsPerStep(double mean) { return mean < 1e-9 ? 1.0 : mean / -std::expm1(-mean); }

// All chunks of one prompt beside the decodes of a step and, when it is short, other prompts.
Prefill CostOfPrompt(const StageCosts& costs, const EngineProfile& engine, const Load& load,
                     const StepLoad& decode, double decode_stage) {
  Prefill prefill;
  prefill.prompts = decode.prompts;
  prefill.num_chunks = std::ceil(load.input_tokens / engine.max_batched_tokens);
  const double chunk = load.input_tokens / prefill.num_chunks;
  for (double i = 0; i < prefill.num_chunks; ++i) {
    StepLoad step = decode;
    step.prefill_tokens = chunk * step.prompts;
    step.prefill_start = i * chunk;
    const double stage = costs.SlowestStage(step).total();
    prefill.added += std::max(0.0, stage - decode_stage) / step.prompts;
    // The last chunk's way through the other stages.
    prefill.first_token += i + 1 < prefill.num_chunks ? stage : costs.SumOfStages(step);
  }
  return prefill;
}

// What a token waits for prompts, so many of which enter the first stage before the next token
// does. Every stage takes longer for their steps, and the others of the pipeline follow at their
// pace: of steps with prompts that are in it at the same time only one counts. They come
// independently.
double HeldUp(const Prefill& prompt, double num_prompts, double num_stages) {
  const double starts = num_prompts / prompt.prompts / num_stages;  // per step
  const double with_prompts = starts * prompt.num_chunks;           // share of steps
  const double behind =
      std::max(0.0, 1.0 - with_prompts) * -std::expm1(-starts * (num_stages - 1.0));
  const double added = prompt.added * prompt.prompts / prompt.num_chunks;  // by one step
  return num_stages * added * (with_prompts + behind);
}

// How much longer than the mean the slowest of a hundred wait, five of them: those that meet more
// prompts than others do, when each meets `mean` of them (Poisson).
double SpreadOfWait(double wait, double mean) {
  return mean > 0 ? wait * std::min(1.0, kP95Deviations / std::sqrt(mean)) : 0.0;
}

// The same where they arrive: while one passes more come, `utilization` of them on average, so that
// they are met in crowds (the number served in a busy period: Borel 1942).
double SpreadOfCrowds(double wait, double mean, double utilization) {
  return mean > 0 ? wait * kP95Deviations / std::sqrt(mean) / (1.0 - utilization) : 0.0;
}

// The fixed point: how many run depends on how long they take.
struct Balance {
  double running = 1;
  double tpot = 0;
  double ttft = 0.05;
  double utilization = 0;
  double wait = 0;         // mean, behind other prompts
  double tpot_spread = 0;  // p95 beyond the mean
};

// As many as the cache holds, and no more than the tokens of a step: each of them takes one.
double MostAdmitted(const EngineProfile& engine, int64_t max_requests) {
  return std::min({static_cast<double>(std::max<int64_t>(1, max_requests)),
                   static_cast<double>(engine.max_running),
                   static_cast<double>(engine.max_batched_tokens)});
}

// Prompts that come independently and decode nothing: those that come during a step share the next.
struct FirstToken {
  double taken = 0;  // seconds, by its own step
  double wait = 0;   // mean
};

// `one` alone in its step, `full` in one with as many as it has room for; those between lie
// between.
FirstToken AtRate(const Prefill& one, const Prefill& full, double rate_per_s) {
  const double others = std::max(1e-9, full.prompts - 1.0);
  const double growth = std::max(0.0, full.prompts * full.added - one.added) / others;
  const double gathered = std::clamp(
      rate_per_s * (one.added - growth) / (1.0 - rate_per_s * growth), 1.0, full.prompts);
  const double share = (gathered - 1.0) / others;
  const double step = one.added + (gathered - 1.0) * growth;
  const double busy = std::min(1.0, rate_per_s * step / gathered);
  // The rest of a step and, if all were full, those that find no room in it (M/D/1, by Pollaczek
  // and Khinchine: exact for prompts that fill a step).
  const double utilization = rate_per_s * full.added;
  const double crowd = utilization * utilization * full.added / 2.0 / (1.0 - utilization);
  return {.taken = one.first_token + share * (full.first_token - one.first_token),
          .wait = busy * step / 2.0 + crowd};
}

// When `admitted` of them are there, on average (Little's law).
FirstToken OfArrivals(const Prefill& one, const Prefill& full, double request_s, double admitted) {
  FirstToken token;
  double low = 0.0;
  double high = 1.0 / full.added;
  for (int i = 0; i < kMaxIterations; ++i) {
    const double rate = (low + high) / 2.0;
    token = AtRate(one, full, rate);
    (rate * (request_s + token.taken + token.wait) < admitted ? low : high) = rate;
  }
  return token;
}

// Of so many all the time, each is behind those that came before it.
FirstToken OfClosedLoop(const Prefill& prompt, double admitted) {
  return {.taken = prompt.first_token,
          .wait = std::max(0.0, admitted - prompt.prompts) * prompt.added};
}

// Answers of one token.
Prediction PredictFirstTokens(const StageCosts& costs, const EngineProfile& engine,
                              const Load& load, double admitted) {
  const double most_prompts = MostPromptsPerStep(engine, load);
  const auto cost_of = [&](double prompts) {
    return CostOfPrompt(costs, engine, load, StepLoad{.prompts = prompts}, 0.0);
  };
  const Prefill prompt = cost_of(std::min(std::max(1.0, admitted), most_prompts));
  const double request_s = engine.request_ms / kMilli;
  const FirstToken token =
      load.arrives ? OfArrivals(cost_of(1.0), cost_of(most_prompts), request_s, admitted)
                   : OfClosedLoop(prompt, admitted);
  const double request = request_s + token.taken + token.wait;
  const double queue = std::max(0.0, load.concurrency - admitted) / admitted * request;
  Prediction out;
  out.ttft_ms = (request + queue) * kMilli;
  out.ttft_p95_ms = out.ttft_ms + (load.arrives ? (kP95OverMean - 1.0) * token.wait * kMilli : 0.0);
  out.requests_per_s = admitted / request;
  out.output_tokens_per_s = out.requests_per_s * load.output_tokens;
  out.utilization = std::min(1.0, out.requests_per_s * prompt.added);
  StepLoad step{.prompts = prompt.prompts};
  step.prefill_tokens =
      std::min<double>(load.input_tokens * prompt.prompts, engine.max_batched_tokens);
  out.decode_step = costs.SlowestStage(step);
  return out;
}

Prediction PredictAnswers(const StageCosts& costs, const EngineProfile& engine, const Load& load,
                          double admitted) {
  // Whom one of them meets: those that arrive do not look whether others are there.
  const double met = load.arrives ? admitted : std::max(0.0, admitted - 1.0);
  const double context = load.input_tokens + load.output_tokens / 2.0;
  const double pp = costs.num_stages();
  const double intervals = std::max(1.0, load.output_tokens - 1.0);
  const double most_prompts = MostPromptsPerStep(engine, load);
  Balance now;
  now.running = admitted;
  double period = 0.0;
  const auto decode_step = [&](double micro_batches, double decodes) {
    return StepLoad{.decodes = decodes / micro_batches,
                    .decode_context = context,
                    .active_stages = static_cast<int>(std::ceil(micro_batches))};
  };
  for (int i = 0; i < kMaxIterations; ++i) {
    const double micro_batches = std::min(pp, std::max(1.0, now.running));
    const StepLoad decode = decode_step(micro_batches, now.running);
    const double stage = costs.SlowestStage(decode).total();
    period = pp == 1 ? stage : std::max(micro_batches * stage, costs.SumOfStages(decode));
    StepLoad others = decode_step(micro_batches, std::max(0.0, now.running - 1.0));
    // In a pipeline those that start until the next token gather behind a step with prompts.
    others.prompts = std::min(PromptsPerStep(now.running / intervals), most_prompts);
    const Prefill prompt = CostOfPrompt(costs, engine, load, others, stage);
    double in_burst = 0.0;
    if (load.pattern.burst_share > 0) {
      others.prompts = most_prompts;
      in_burst = CostOfPrompt(costs, engine, load, others, stage).added;
    }
    const double decoding = intervals * (i == 0 ? period : now.tpot);
    // Prompts that arrive while its own is computed pass after it, too, while it decodes; in a
    // closed loop whoever comes then took the place of one that it has met.
    const double share = load.arrives ? 1.0 : decoding / (decoding + now.ttft);
    const double tpot = period + HeldUp(prompt, met * share / intervals, pp);
    const double of_each = prompt.added / (decoding + now.ttft);
    now.utilization = std::min(kMaxUtilization, admitted * of_each);
    const double met_prompts = met * share / prompt.prompts;
    now.tpot_spread = load.arrives ? SpreadOfCrowds(tpot - period, met_prompts, now.utilization)
                                   : SpreadOfWait(tpot - period, met_prompts);
    const double busy = std::min(kMaxUtilization, met * of_each);
    now.wait = prompt.first_token * busy / (2.0 * (1.0 - busy));
    const double ttft = engine.request_ms / kMilli + prompt.first_token + now.wait +
                        load.pattern.burst_share * met / 2.0 * in_burst +
                        load.pattern.slot_share * decoding / load.concurrency;
    const double change = std::abs(tpot / now.tpot - 1.0) + std::abs(ttft / now.ttft - 1.0);
    now.tpot = i == 0 ? tpot : 0.5 * (now.tpot + tpot);
    now.ttft = 0.5 * (now.ttft + ttft);
    now.running = std::max(1.0, admitted * decoding / (decoding + now.ttft));
    if (i > 0 && change < kConverged) break;
  }
  const double request = intervals * now.tpot + now.ttft;
  const double queue = std::max(0.0, load.concurrency - admitted) / admitted * request;
  Prediction out;
  out.ttft_ms = (now.ttft + queue) * kMilli;
  out.ttft_p95_ms = (now.ttft + queue + (kP95OverMean - 1.0) * now.wait) * kMilli;
  out.tpot_ms = now.tpot * kMilli;
  out.tpot_p95_ms = (now.tpot + now.tpot_spread) * kMilli;
  out.running = now.running;
  out.requests_per_s = admitted / request;
  out.output_tokens_per_s = out.requests_per_s * load.output_tokens;
  out.utilization = now.utilization;
  const double micro_batches = std::min(pp, std::max(1.0, now.running));
  out.decode_step = costs.SlowestStage(decode_step(micro_batches, now.running));
  return out;
}

}  // namespace

Prediction Predict(const StageCosts& costs, const EngineProfile& engine, const Load& load,
                   int64_t max_requests) {
  const double admitted = std::min(load.concurrency, MostAdmitted(engine, max_requests));
  Prediction out = load.output_tokens > 1 ? PredictAnswers(costs, engine, load, admitted)
                                          : PredictFirstTokens(costs, engine, load, admitted);
  out.saturated = load.concurrency > static_cast<double>(max_requests);
  return out;
}

std::optional<double> ConcurrencyAtRate(const StageCosts& costs, const EngineProfile& engine,
                                        Load load, int64_t max_requests, double rate_per_s) {
  const auto is_less = [&](double concurrency) {
    load.concurrency = concurrency;
    return Predict(costs, engine, load, max_requests).requests_per_s < rate_per_s;
  };
  double low = 1e-3;
  double high = MostAdmitted(engine, max_requests);
  if (is_less(high)) return std::nullopt;
  for (int i = 0; i < 40 && high / low > 1.001; ++i) {
    const double middle = std::sqrt(low * high);
    (is_less(middle) ? low : high) = middle;
  }
  return high;
}

}  // namespace lockstep::plan
