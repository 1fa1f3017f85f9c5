// Requests that run through the engine's own scheduler over the simulated executor, in virtual
// time, and what became of each. Deterministic; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "deploy/plan/arrivals.h"
#include "deploy/plan/queue_simulation.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/fake_language_model.h"
#include "runtime/engine/simulated_executor.h"

namespace lockstep::plan {

// Of one request.
struct Progress {
  absl::Time arrived;
  absl::Time first;
  absl::Time last;
  int64_t num_tokens = 0;
  bool is_finished = false;

  double ttft_ms(double request_ms) const {
    return request_ms + absl::ToDoubleMilliseconds(first - arrived);
  }
  // 0 of one token.
  double tpot_ms() const {
    if (num_tokens < 2) return 0.0;
    return absl::ToDoubleMilliseconds(last - first) / static_cast<double>(num_tokens - 1);
  }
};

// What has been measured, of one replica or of several.
struct Measured {
  std::vector<double> ttft_ms;
  std::vector<double> tpot_ms;  // of answers of several tokens
  uint64_t num_preemptions = 0;
  int64_t num_tokens = 0;

  QueueResult Result();
};

// Drives engine and executor.
class Replay {
 public:
  explicit Replay(const SimulatedReplica& replica);

  // Whatever is to come; by time.
  std::multimap<absl::Time, Arrival>& arrivals() { return arrivals_; }

  uint64_t num_added() const { return num_added_; }
  uint64_t num_in_flight() const { return num_in_flight_; }
  int max_num_seqs() const { return config_.max_num_seqs; }
  const Progress& progress(uint64_t request) const { return progress_.at(request); }

  // The load's first requests, running already: their prompts, with a part of their answers, are
  // computed in no time.
  void Seed(const SteadyLoad& load);

  // After each arrival that came of these the next one follows, until more than so many requests
  // are in flight, or the engine refuses one.
  void GoOn(PoissonArrivals arrivals, uint64_t most_in_flight);
  // Did that end them?
  bool is_overrun() const { return is_overrun_; }

  // Was there a moment at which nobody waited to run? Since this was asked last.
  bool TakeAllRan() { return std::exchange(all_ran_, false); }

  // Hears of each answer, and may add arrivals. False: enough is known.
  using OnFinish = std::function<bool(uint64_t request, absl::Time now)>;
  // Until it says so, or all have their answers.
  void Run(const OnFinish& on_finish);

  // Of the answered requests from number `begin` on, before number `end`.
  void Measure(uint64_t begin, uint64_t end, double request_ms, Measured& into) const;
  QueueResult Result(uint64_t begin, uint64_t end, double request_ms) const;

 private:
  void AddNext();
  void Add(const Arrival& arrival);
  void Commit(const OnFinish& on_finish);

  const engine::EngineConfig config_;
  const engine::FakeLanguageModel model_;
  engine::Engine engine_;
  bool is_free_ = false;  // steps take no time
  engine::SimulatedExecutor executor_;
  std::multimap<absl::Time, Arrival> arrivals_;
  std::optional<PoissonArrivals> goes_on_;
  uint64_t most_in_flight_ = 0;
  bool is_overrun_ = false;
  bool all_ran_ = false;
  uint64_t num_added_ = 0;
  uint64_t num_in_flight_ = 0;  // running or waiting
  int64_t num_tokens_ = 0;      // of answers, and a sixteenth of those of prompts
  bool is_enough_ = false;
  std::vector<Progress> progress_;  // [num_added]
};

}  // namespace lockstep::plan
