#include "deploy/plan/queue_simulation.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "deploy/plan/units.h"
#include "kernels/base/check.h"
#include "kernels/base/quantile.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/simulated_executor.h"

namespace lockstep::plan {
namespace {

constexpr int32_t kVocab = 1000;     // made-up tokens
constexpr double kWarmUp = 0.1;      // share of a trace that is not measured
constexpr int kGenerations = 3;      // of a load that goes on, not measured
constexpr uint64_t kMeasured = 500;  // requests of it
constexpr uint64_t kFewestSteady = 20;
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

  uint64_t num_added() const { return num_added_; }

  // Hears of each answer, and may add arrivals. False: enough is known.
  using OnFinish = std::function<bool(uint64_t request, absl::Time now)>;
  // Until it says so, or all have their answers.
  void Run(const OnFinish& on_finish) {
    while (!is_enough_ && (!arrivals_.empty() || !engine_.Idle())) {
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

  void Commit(const OnFinish& on_finish) {
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
      progress_[event.request_id].is_finished = true;
      is_enough_ = !on_finish(event.request_id, executor_.now()) || is_enough_;
    }
  }

  const engine::EngineConfig config_;
  const engine::FakeLanguageModel model_;
  engine::Engine engine_;
  engine::SimulatedExecutor executor_;
  std::multimap<absl::Time, Arrival> arrivals_;
  uint64_t num_added_ = 0;
  bool is_enough_ = false;
  std::map<uint64_t, Progress> progress_;
};

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
  std::sort(ttft.begin(), ttft.end());
  std::sort(tpot.begin(), tpot.end());
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

// The requests that are measured of a load that goes on. One generation follows another: it begins
// when one of the last has its answer, and takes as long as answers take by then. After a few as
// many run as always will; those that come next are measured, with others behind them to their end.
class SteadyWindow {
 public:
  // False: all of it have their answers.
  bool Finish(uint64_t request, uint64_t num_added) {
    if (num_generations_ < kGenerations) {
      if (request < begin_) return true;
      begin_ = num_added;
      ++num_generations_;
      return true;
    }
    if (request >= begin_ && request < end()) ++num_finished_;
    return num_finished_ < kMeasured;
  }
  bool has_come() const {
    return num_generations_ == kGenerations && num_finished_ >= kFewestSteady;
  }
  uint64_t begin() const { return begin_; }
  uint64_t end() const { return begin_ + kMeasured; }

 private:
  int num_generations_ = 0;
  uint64_t begin_ = 0;  // of the generation that begins, or of the window
  uint64_t num_finished_ = 0;
};

QueueResult SimulateSteadyQueue(Replay& replay, double request_ms) {
  SteadyWindow window;
  replay.Run(
      [&](uint64_t request, absl::Time) { return window.Finish(request, replay.num_added()); });
  if (window.has_come()) return replay.Result(window.begin(), window.end(), request_ms);
  QueueResult result = replay.Result(replay.num_added() / 2, replay.num_added(), request_ms);
  result.is_steady = false;
  return result;
}

}  // namespace

QueueResult SimulateQueue(const SimulatedReplica& replica, const ArrivalStream& stream) {
  Replay replay(replica);
  for (const Arrival& arrival : stream.arrivals) {
    replay.arrivals().emplace(absl::UnixEpoch() + Seconds(arrival.seconds), arrival);
  }
  if (stream.goes_on) return SimulateSteadyQueue(replay, replica.request_ms);
  replay.Run([](uint64_t, absl::Time) { return true; });
  return replay.Result(static_cast<uint64_t>(kWarmUp * static_cast<double>(replay.num_added())),
                       replay.num_added(), replica.request_ms);
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
  const uint64_t num_answers = end + (concurrency == 1 ? 0 : concurrency);
  uint64_t num_finished = 0;
  replay.Run([&](uint64_t, absl::Time now) {
    send(now);
    return ++num_finished < num_answers;
  });
  return replay.Result(begin, end, replica.request_ms);
}

}  // namespace lockstep::plan
