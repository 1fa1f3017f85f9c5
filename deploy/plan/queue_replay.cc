#include "deploy/plan/queue_replay.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/quantile.h"

namespace lockstep::plan {
namespace {

constexpr int32_t kVocab = 1000;  // made-up tokens

StepLoad ToLoad(const engine::SimulatedStep& step) {
  StepLoad load;
  load.decodes = step.num_decodes;
  if (step.num_decodes > 0) {
    load.decode_context = static_cast<double>(step.num_decode_context_tokens) / step.num_decodes;
  }
  if (step.num_chunks > 0) {
    load.prompts = step.num_chunks;
    load.prefill_tokens = static_cast<double>(step.num_chunk_tokens);
    load.prefill_start =
        static_cast<double>(step.num_chunk_context_tokens - step.num_chunk_tokens) /
        step.num_chunks;
  }
  load.active_stages = step.num_active;
  return load;
}

engine::EngineConfig ConfigOf(const SimulatedReplica& replica) {
  engine::EngineConfig config;
  config.num_blocks = replica.num_kv_blocks;
  config.block_size = replica.block_size;
  config.max_num_seqs = replica.max_num_seqs;
  config.max_batched_tokens = std::max(replica.max_batched_tokens, config.max_num_seqs);
  config.max_model_len = replica.max_model_len;
  config.max_queued_requests = 1 << 20;
  config.pipeline_depth = replica.costs.num_stages();
  config.max_steps_in_flight = config.pipeline_depth + 1;
  config.enable_prefix_cache = false;
  config.vocab_size = kVocab;
  return config;
}

double Mean(const std::vector<double>& values) {
  if (values.empty()) return 0.0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

Replay::Replay(const SimulatedReplica& replica)
    : config_(ConfigOf(replica)),
      model_(1, kVocab, {}),
      engine_(config_),
      executor_(
          {.num_blocks = config_.num_blocks,
           .block_size = config_.block_size,
           .max_num_seqs = config_.max_num_seqs,
           .max_model_len = config_.max_model_len,
           .pipeline_depth = config_.pipeline_depth,
           .has_contents = false},
          [this, &costs = replica.costs](const engine::SimulatedStep& step, int stage) {
            return is_free_ ? absl::ZeroDuration()
                            : absl::Seconds(costs.StageSeconds(stage, ToLoad(step)));
          },
          model_, absl::UnixEpoch()) {}

void Replay::GoOn(PoissonArrivals arrivals, uint64_t most_in_flight) {
  goes_on_ = std::move(arrivals);
  most_in_flight_ = most_in_flight;
  AddNext();
}

void Replay::Run(const OnFinish& on_finish) {
  while (!is_enough_ && (!arrivals_.empty() || !engine_.Idle())) {
    while (auto plan = engine_.Schedule(executor_.now())) executor_.Submit(*plan);
    all_ran_ = all_ran_ || engine_.Stats().num_waiting == 0;
    const absl::Time arrival =
        arrivals_.empty() ? absl::InfiniteFuture() : arrivals_.begin()->first;
    const absl::Time until = std::min(arrival, executor_.NextResultTime());
    if (until == absl::InfiniteFuture()) break;
    executor_.AdvanceTo(std::max(executor_.now(), until));
    if (arrival <= until) {
      Add(arrivals_.begin()->second);
      arrivals_.erase(arrivals_.begin());
      AddNext();
    }
    Commit(on_finish);
  }
}

void Replay::AddNext() {
  if (!goes_on_ || is_overrun_) return;
  is_overrun_ = num_in_flight_ > most_in_flight_;
  if (is_overrun_) return;
  const Arrival next = goes_on_->Next();
  arrivals_.emplace(absl::UnixEpoch() + absl::Seconds(next.seconds), next);
}

void Replay::Add(const Arrival& arrival) {
  engine::EngineRequest request;
  request.request_id = num_added_++;
  progress_.emplace_back();
  request.prompt.assign(static_cast<size_t>(arrival.input_tokens), 1);
  request.sampling.max_tokens = static_cast<int>(arrival.output_tokens);
  const uint64_t id = request.request_id;
  if (!engine_.Add(std::move(request)).ok()) {
    is_overrun_ = goes_on_.has_value();
    return;
  }
  progress_[id].arrived = executor_.now();
  num_tokens_ += arrival.input_tokens / 16;
  ++num_in_flight_;
}

void Replay::Commit(const OnFinish& on_finish) {
  for (auto result = executor_.TakeResult(); result.ok() && result->has_value();
       result = executor_.TakeResult()) {
    const absl::Status committed = engine_.Commit(**result);
    LS_CHECK(committed.ok()) << committed.message();
  }
  for (const engine::EngineEvent& event : engine_.TakeEvents()) {
    if (event.token) {
      Progress& progress = progress_[event.request_id];
      ++num_tokens_;
      if (progress.num_tokens++ == 0) progress.first = executor_.now();
      progress.last = executor_.now();
    }
    if (!event.finish) continue;
    progress_[event.request_id].is_finished = true;
    --num_in_flight_;
    is_enough_ = !on_finish(event.request_id, executor_.now()) || is_enough_;
  }
}

// Those that have most of their answers come first and decode while the others' prompts are
// computed, so they start with as many tokens less.
void Replay::Seed(const SteadyLoad& load) {
  const auto count = static_cast<double>(std::llround(load.in_flight));
  const double step = static_cast<double>(config_.max_batched_tokens) * config_.pipeline_depth;
  double tokens = count * (load.input_tokens + load.output_tokens / 2.0);
  auto num_steps =
      static_cast<int64_t>(tokens / config_.max_batched_tokens) + 2 * config_.pipeline_depth + 1;
  for (double i = 0; i < count; ++i) {
    const double has = load.output_tokens * (count - i - 0.5) / count;
    const double computed = std::max(0.0, has - tokens / step);
    Add({0, std::llround(load.input_tokens + computed),
         std::max<int64_t>(1, std::llround(load.output_tokens - computed))});
    tokens -= load.input_tokens + computed;
  }
  is_free_ = true;
  const OnFinish ignore = [](uint64_t, absl::Time) { return true; };
  while (num_steps > 0) {
    for (; num_steps > 0; --num_steps) {
      const auto plan = engine_.Schedule(executor_.now());
      if (!plan) break;
      executor_.Submit(*plan);
    }
    if (executor_.NextResultTime() == absl::InfiniteFuture()) break;
    Commit(ignore);
  }
  is_free_ = false;
}

void Replay::Measure(uint64_t begin, uint64_t end, double request_ms, Measured& into) const {
  for (uint64_t id = begin; id < std::min(end, num_added_); ++id) {
    const Progress& progress = progress_[id];
    if (!progress.is_finished) continue;
    into.ttft_ms.push_back(progress.ttft_ms(request_ms));
    if (progress.num_tokens > 1) into.tpot_ms.push_back(progress.tpot_ms());
  }
  into.num_preemptions += engine_.Stats().num_preemptions;
  into.num_tokens += num_tokens_;
}

QueueResult Replay::Result(uint64_t begin, uint64_t end, double request_ms) const {
  Measured measured;
  Measure(begin, end, request_ms, measured);
  return measured.Result();
}

QueueResult Measured::Result() {
  std::sort(ttft_ms.begin(), ttft_ms.end());
  std::sort(tpot_ms.begin(), tpot_ms.end());
  QueueResult result;
  result.num_requests = static_cast<int>(ttft_ms.size());
  result.ttft_mean_ms = Mean(ttft_ms);
  result.ttft_p50_ms = Quantile(ttft_ms, 0.5);
  result.ttft_p95_ms = Quantile(ttft_ms, 0.95);
  result.tpot_mean_ms = Mean(tpot_ms);
  result.tpot_p50_ms = Quantile(tpot_ms, 0.5);
  result.tpot_p95_ms = Quantile(tpot_ms, 0.95);
  result.num_preemptions = num_preemptions;
  result.num_tokens = num_tokens;
  return result;
}

}  // namespace lockstep::plan
