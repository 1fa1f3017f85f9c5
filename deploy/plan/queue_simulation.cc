#include "deploy/plan/queue_simulation.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "kernels/base/check.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/simulated_executor.h"

namespace lockstep::plan {
namespace {

constexpr int32_t kVocab = 1000;  // made-up tokens
constexpr double kMilli = 1e3;
constexpr double kWarmUp = 0.1;  // share of the arrivals that is not measured
constexpr double kGoldenRatio = 0.6180339887498949;

absl::Duration Seconds(double seconds) { return absl::Seconds(seconds); }

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
  config.max_num_seqs = std::min(kMostSimulatedSeqs, replica.max_num_seqs);
  config.max_batched_tokens = std::max(replica.max_batched_tokens, config.max_num_seqs);
  config.max_model_len = replica.max_model_len;
  config.max_queued_requests = 1 << 20;
  config.pipeline_depth = replica.costs.num_stages();
  config.max_steps_in_flight = config.pipeline_depth + 1;
  config.enable_prefix_cache = false;
  config.vocab_size = kVocab;
  return config;
}

struct Progress {
  absl::Time arrived;
  absl::Time first;
  absl::Time last;
  int64_t num_tokens = 0;
  bool is_finished = false;
};

// Drives engine and executor.
class Replay {
 public:
  explicit Replay(const SimulatedReplica& replica)
      : config_(ConfigOf(replica)),
        model_(1, kVocab, {}),
        engine_(config_),
        executor_(
            {.num_blocks = config_.num_blocks,
             .block_size = config_.block_size,
             .max_num_seqs = config_.max_num_seqs,
             .max_model_len = config_.max_model_len,
             .pipeline_depth = config_.pipeline_depth,
             .check_kv = false},
            [&costs = replica.costs](const engine::SimulatedStep& step, int stage) {
              return Seconds(costs.StageSeconds(stage, ToLoad(step)));
            },
            model_, absl::UnixEpoch()) {}

  // Whatever is to come; by time.
  std::multimap<absl::Time, Arrival>& arrivals() { return arrivals_; }

  // Until all, or so many, have their answers. on_finish hears of each and may add arrivals.
  void Run(size_t num_answers, const std::function<void(absl::Time now)>& on_finish) {
    while (num_finished_ < num_answers && (!arrivals_.empty() || !engine_.Idle())) {
      while (auto plan = engine_.Schedule(executor_.now())) executor_.Submit(*plan);
      const absl::Time arrival =
          arrivals_.empty() ? absl::InfiniteFuture() : arrivals_.begin()->first;
      const absl::Time until = std::min(arrival, executor_.NextResultTime());
      if (until == absl::InfiniteFuture()) break;
      executor_.AdvanceTo(std::max(executor_.now(), until));
      if (arrival <= until) {
        Add(arrivals_.begin()->second);
        arrivals_.erase(arrivals_.begin());
      }
      Commit(on_finish);
    }
  }

  // Of the answered requests from number `begin` on, before number `end`.
  QueueResult Result(uint64_t begin, uint64_t end, double request_ms) const;

 private:
  void Add(const Arrival& arrival) {
    engine::EngineRequest request;
    request.request_id = num_added_++;
    request.prompt.assign(static_cast<size_t>(arrival.input_tokens), 1);
    request.sampling.max_tokens = static_cast<int>(arrival.output_tokens);
    const uint64_t id = request.request_id;
    if (!engine_.Add(std::move(request), executor_.now()).ok()) return;
    progress_[id].arrived = executor_.now();
  }

  void Commit(const std::function<void(absl::Time now)>& on_finish) {
    for (auto result = executor_.TakeResult(); result.ok() && result->has_value();
         result = executor_.TakeResult()) {
      const absl::Status committed = engine_.Commit(**result, executor_.now());
      LS_CHECK(committed.ok()) << committed.message();
    }
    for (const engine::EngineEvent& event : engine_.TakeEvents()) {
      if (event.token) {
        Progress& progress = progress_[event.request_id];
        if (progress.num_tokens++ == 0) progress.first = executor_.now();
        progress.last = executor_.now();
      }
      if (!event.finish) continue;
      ++num_finished_;
      progress_[event.request_id].is_finished = true;
      on_finish(executor_.now());
    }
  }

  const engine::EngineConfig config_;
  const engine::FakeLanguageModel model_;
  engine::Engine engine_;
  engine::SimulatedExecutor executor_;
  std::multimap<absl::Time, Arrival> arrivals_;
  uint64_t num_added_ = 0;
  size_t num_finished_ = 0;
  std::map<uint64_t, Progress> progress_;
};

double Quantile(std::vector<double>& values, double share) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

double Mean(const std::vector<double>& values) {
  if (values.empty()) return 0.0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

QueueResult Replay::Result(uint64_t begin, uint64_t end, double request_ms) const {
  std::vector<double> ttft;
  std::vector<double> tpot;
  for (const auto& [id, progress] : progress_) {
    if (id < begin || id >= end || !progress.is_finished) continue;
    ttft.push_back(request_ms + kMilli * absl::ToDoubleSeconds(progress.first - progress.arrived));
    if (progress.num_tokens > 1) {
      tpot.push_back(kMilli * absl::ToDoubleSeconds(progress.last - progress.first) /
                     static_cast<double>(progress.num_tokens - 1));
    }
  }
  QueueResult result;
  result.num_requests = static_cast<int>(ttft.size());
  result.ttft_mean_ms = Mean(ttft);
  result.ttft_p50_ms = Quantile(ttft, 0.5);
  result.ttft_p95_ms = Quantile(ttft, 0.95);
  result.tpot_mean_ms = Mean(tpot);
  result.tpot_p50_ms = Quantile(tpot, 0.5);
  result.tpot_p95_ms = Quantile(tpot, 0.95);
  result.num_preemptions = engine_.Stats().num_preemptions;
  return result;
}

}  // namespace

QueueResult SimulateQueue(const SimulatedReplica& replica, const std::vector<Arrival>& arrivals) {
  Replay replay(replica);
  for (const Arrival& arrival : arrivals) {
    replay.arrivals().emplace(absl::UnixEpoch() + Seconds(arrival.seconds), arrival);
  }
  replay.Run(arrivals.size(), [](absl::Time) {});
  return replay.Result(static_cast<uint64_t>(kWarmUp * static_cast<double>(arrivals.size())),
                       arrivals.size(), replica.request_ms);
}

QueueResult SimulateClosedLoop(const SimulatedReplica& replica, const Load& load) {
  constexpr uint64_t kFewest = 16;  // requests whose mean says something
  const auto concurrency = static_cast<uint64_t>(std::max(1.0, load.concurrency));
  // Those that start together do not count; those that count see others to their end.
  const uint64_t begin = concurrency == 1 ? 0 : concurrency;
  const uint64_t end = concurrency == 1 ? 1 : begin + std::max(kFewest, 2 * concurrency);
  uint64_t num_sent = 0;
  Replay replay(replica);
  const auto send = [&](absl::Time now) {
    double whole = 0;
    const double share =
        concurrency == 1
            ? 1.0
            : 0.5 + std::modf(static_cast<double>(num_sent + 1) * kGoldenRatio, &whole);
    ++num_sent;
    const Arrival arrival{0, std::llround(load.input_tokens),
                          std::max<int64_t>(1, std::llround(load.output_tokens * share))};
    replay.arrivals().emplace(now + Seconds(replica.request_ms / kMilli), arrival);
  };
  for (uint64_t i = 0; i < concurrency; ++i) send(absl::UnixEpoch());
  replay.Run(end + (concurrency == 1 ? 0 : concurrency), send);
  return replay.Result(begin, end, replica.request_ms);
}

}  // namespace lockstep::plan
