#include "deploy/plan/queue_simulation.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "deploy/plan/roofline.h"
#include "kernels/base/check.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/simulated_executor.h"

namespace lockstep::plan {
namespace {

constexpr int32_t kVocab = 1000;  // made-up tokens
constexpr double kMilli = 1e3;
constexpr double kWarmUp = 0.1;  // share of the requests that is not measured
constexpr size_t kMaxTraceLines = 100000;
constexpr double kMaxSimulatedTokens = 60000;

absl::Duration Seconds(double seconds) { return absl::Seconds(seconds); }

// The roofline as the executor's straight line: a step, its tokens, their contexts.
engine::SimulatedCosts LinearCosts(const PlanRequest& request, const Candidate& candidate) {
  const Deployment deployment{request.model.architecture,
                              request.weights,
                              request.kv,
                              request.policy,
                              request.gpu,
                              request.engine,
                              candidate.layout,
                              request.gpus_per_node};
  const Roofline roofline(deployment);
  const double pp = roofline.num_stages();
  const double context = request.input_tokens + request.output_tokens / 2;
  const double chunk = std::min<double>(request.engine.max_batched_tokens, request.input_tokens);
  const double alone = roofline.SlowestStage({.decodes = 1, .decode_context = 1}).total();
  const double far = roofline.SlowestStage({.decodes = 1, .decode_context = context}).total();
  const double prompt = roofline.SlowestStage({.prefill_tokens = chunk}).total();
  engine::SimulatedCosts costs;
  costs.base = Seconds(pp * alone);
  costs.per_token = Seconds(pp * std::max(0.0, prompt - alone) / chunk);
  costs.per_context_token = Seconds(pp * std::max(0.0, far - alone) / context);
  return costs;
}

engine::EngineConfig ConfigOf(const PlanRequest& request, const Candidate& candidate) {
  engine::EngineConfig config;
  config.num_blocks = candidate.memory.num_kv_blocks;
  config.block_size = static_cast<int>(request.memory.block_size);
  config.max_num_seqs = std::min(1024, request.engine.max_running);
  config.max_batched_tokens = std::max(request.engine.max_batched_tokens, config.max_num_seqs);
  config.max_model_len = candidate.memory.max_request_tokens;
  config.max_queued_requests = 1 << 20;
  config.pipeline_depth = candidate.layout.pp;
  config.max_steps_in_flight = candidate.layout.pp + 1;
  config.enable_prefix_cache = false;
  config.vocab_size = kVocab;
  return config;
}

struct Progress {
  absl::Time arrived;
  absl::Time first;
  absl::Time last;
  int64_t num_tokens = 0;
};

// Drives engine and executor through all arrivals.
class Replay {
 public:
  Replay(const engine::EngineConfig& config, const engine::SimulatedCosts& costs)
      : model_(1, kVocab, {}),
        engine_(config),
        executor_({.num_blocks = config.num_blocks,
                   .block_size = config.block_size,
                   .max_num_seqs = config.max_num_seqs,
                   .max_model_len = config.max_model_len,
                   .pipeline_depth = config.pipeline_depth,
                   .check_kv = false},
                  costs, model_, absl::UnixEpoch()) {}

  void Run(const std::vector<Arrival>& arrivals) {
    size_t next = 0;
    while (next < arrivals.size() || !engine_.Idle()) {
      while (auto plan = engine_.Schedule(executor_.now())) executor_.Submit(*plan);
      const absl::Time arrival = next < arrivals.size()
                                     ? absl::UnixEpoch() + Seconds(arrivals[next].seconds)
                                     : absl::InfiniteFuture();
      const absl::Time until = std::min(arrival, executor_.NextResultTime());
      if (until == absl::InfiniteFuture()) break;
      executor_.AdvanceTo(std::max(executor_.now(), until));
      if (arrival <= until) Add(arrivals[next], next), ++next;
      Commit();
    }
  }

  const std::map<uint64_t, Progress>& progress() const { return progress_; }
  uint64_t num_preemptions() const { return engine_.Stats().num_preemptions; }

 private:
  void Add(const Arrival& arrival, uint64_t id) {
    engine::EngineRequest request;
    request.request_id = id;
    request.prompt.assign(static_cast<size_t>(arrival.input_tokens), 1);
    request.sampling.max_tokens = static_cast<int>(arrival.output_tokens);
    if (!engine_.Add(std::move(request), executor_.now()).ok()) return;
    progress_[id].arrived = executor_.now();
  }

  void Commit() {
    for (auto result = executor_.TakeResult(); result.ok() && result->has_value();
         result = executor_.TakeResult()) {
      const absl::Status committed = engine_.Commit(**result, executor_.now());
      LS_CHECK(committed.ok()) << committed.message();
    }
    for (const engine::EngineEvent& event : engine_.TakeEvents()) {
      if (!event.token) continue;
      Progress& progress = progress_[event.request_id];
      if (progress.num_tokens++ == 0) progress.first = executor_.now();
      progress.last = executor_.now();
    }
  }

  const engine::FakeLanguageModel model_;
  engine::Engine engine_;
  engine::SimulatedExecutor executor_;
  std::map<uint64_t, Progress> progress_;
};

double Quantile(std::vector<double>& values, double share) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

int SimulatedRequests(const PlanRequest& request) {
  const double tokens = request.output_tokens + request.input_tokens / 16;
  return static_cast<int>(std::clamp(kMaxSimulatedTokens / tokens, 20.0, 300.0));
}

absl::StatusOr<Arrival> ParseArrival(const std::string& line) {
  const std::vector<std::string> fields = absl::StrSplit(line, ',');
  Arrival arrival;
  if (fields.size() == 3 && absl::SimpleAtod(fields[0], &arrival.seconds) &&
      absl::SimpleAtoi(fields[1], &arrival.input_tokens) &&
      absl::SimpleAtoi(fields[2], &arrival.output_tokens) && arrival.seconds >= 0 &&
      arrival.seconds <= 1e7 && arrival.input_tokens >= 1 && arrival.input_tokens <= 1 << 27 &&
      arrival.output_tokens >= 1 && arrival.output_tokens <= 1 << 27) {
    return arrival;
  }
  return absl::InvalidArgumentError("is not seconds,input,output with tokens from 1 on");
}

}  // namespace

std::vector<Arrival> PoissonArrivals(double rate_per_s, int64_t input_tokens, int64_t output_tokens,
                                     int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Arrival> arrivals;
  double now = 0.0;
  for (int i = 0; i < count; ++i) {
    arrivals.push_back({now, input_tokens, output_tokens});
    // By hand: the library's distributions differ between libraries.
    const double uniform = (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
    now -= std::log(uniform) / rate_per_s;
  }
  return arrivals;
}

std::vector<Arrival> ArrivalsOfReplica(const Plan& plan) {
  const PlanRequest& request = plan.request;
  const int replicas = plan.answer()->layout.replicas;
  if (request.trace.empty()) {
    return PoissonArrivals(request.rate_per_s / replicas, std::llround(request.input_tokens),
                           std::llround(request.output_tokens), SimulatedRequests(request), 1);
  }
  constexpr size_t kMaxSimulated = 500;
  std::vector<Arrival> share;
  for (size_t i = 0; i < request.trace.size() && share.size() < kMaxSimulated;
       i += static_cast<size_t>(replicas)) {
    share.push_back(request.trace[i]);
  }
  return share;
}

absl::StatusOr<std::vector<Arrival>> LoadTrace(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  std::vector<Arrival> arrivals;
  std::string line;
  size_t number = 0;
  while (std::getline(file, line)) {
    ++number;
    const std::string stripped(absl::StripAsciiWhitespace(line));
    if (stripped.empty() || (number == 1 && absl::ascii_isalpha(stripped[0]))) continue;
    auto arrival = ParseArrival(stripped);
    absl::Status status = arrival.status();
    if (status.ok() && !arrivals.empty() && arrival->seconds < arrivals.back().seconds) {
      status = absl::InvalidArgumentError("goes back in time");
    }
    if (status.ok() && arrivals.size() == kMaxTraceLines) {
      status = absl::InvalidArgumentError("is one more than the 100,000 that are read");
    }
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " line ", number, " ", status.message()));
    }
    arrivals.push_back(*arrival);
  }
  if (arrivals.size() < 2) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has fewer than two requests"));
  }
  return arrivals;
}

QueueResult SimulateQueue(const PlanRequest& request, const Candidate& candidate,
                          const std::vector<Arrival>& arrivals) {
  Replay replay(ConfigOf(request, candidate), LinearCosts(request, candidate));
  replay.Run(arrivals);
  std::vector<double> ttft;
  std::vector<double> tpot;
  const auto first_measured = static_cast<uint64_t>(kWarmUp * static_cast<double>(arrivals.size()));
  for (const auto& [id, progress] : replay.progress()) {
    if (id < first_measured || progress.num_tokens == 0) continue;
    ttft.push_back(request.engine.request_ms +
                   kMilli * absl::ToDoubleSeconds(progress.first - progress.arrived));
    if (progress.num_tokens > 1) {
      tpot.push_back(kMilli * absl::ToDoubleSeconds(progress.last - progress.first) /
                     static_cast<double>(progress.num_tokens - 1));
    }
  }
  QueueResult result;
  result.num_requests = static_cast<int>(ttft.size());
  result.ttft_p50_ms = Quantile(ttft, 0.5);
  result.ttft_p95_ms = Quantile(ttft, 0.95);
  result.tpot_p50_ms = Quantile(tpot, 0.5);
  result.tpot_p95_ms = Quantile(tpot, 0.95);
  result.num_preemptions = replay.num_preemptions();
  return result;
}

}  // namespace lockstep::plan
