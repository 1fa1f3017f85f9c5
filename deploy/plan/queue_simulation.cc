#include "deploy/plan/queue_simulation.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <vector>

#include "deploy/plan/queue_replay.h"

namespace lockstep::plan {
namespace {

constexpr double kWarmUp = 0.1;  // share of a trace that is not measured
constexpr double kGoldenRatio = 0.6180339887498949;

// Counts the requests above a limit.
class LimitWatch {
 public:
  LimitWatch(const SimulatedReplica& replica, uint64_t num_measured)
      : request_ms_(replica.request_ms),
        ttft_limit_ms_(replica.ttft_p95_limit_ms),
        tpot_limit_ms_(replica.tpot_p95_limit_ms),
        most_(num_measured / 20 + 1) {}

  // Is the 95th percentile above a limit, however the others fare?
  bool Add(const Progress& progress) {
    num_late_ += ttft_limit_ms_ > 0 && progress.ttft_ms(request_ms_) > ttft_limit_ms_ ? 1 : 0;
    num_slow_ += tpot_limit_ms_ > 0 && progress.tpot_ms() > tpot_limit_ms_ ? 1 : 0;
    return num_late_ > most_ || num_slow_ > most_;
  }
  void Forget() { num_late_ = num_slow_ = 0; }

 private:
  const double request_ms_;
  const double ttft_limit_ms_;
  const double tpot_limit_ms_;
  const uint64_t most_;
  uint64_t num_late_ = 0;
  uint64_t num_slow_ = 0;
};

// What a random number of this mean is rarely off by, and a small share.
double Margin(double mean) { return 3.0 * std::sqrt(mean + 1.0) + 0.05 * mean; }

// After so many arrivals as many seconds have passed as their rate says.
uint64_t ArrivalWindow(uint64_t num_measured) {
  return std::min<uint64_t>(PoissonArrivals::kWindow, num_measured);
}

// Whether a queue fills up from the middle of a trace to its end: one always waits to run, and many
// more requests are in flight.
class TraceEnd {
 public:
  explicit TraceEnd(size_t num_arrivals) : num_arrivals_(num_arrivals) {}

  void Finish(Replay& replay) {
    const auto in_flight = static_cast<double>(replay.num_in_flight());
    if (!in_flight_before_ && replay.num_added() >= num_arrivals_ / 2) {
      in_flight_before_ = in_flight;
      replay.TakeAllRan();
    } else if (!has_ended_ && replay.num_added() == num_arrivals_) {
      has_ended_ = true;
      const bool has_grown = in_flight - *in_flight_before_ > Margin(*in_flight_before_);
      is_steady_ = replay.TakeAllRan() || !has_grown;
    }
  }
  bool is_steady() const { return is_steady_; }

 private:
  const size_t num_arrivals_;
  std::optional<double> in_flight_before_;
  bool has_ended_ = false;
  bool is_steady_ = true;
};

// Fewer of long answers, of which each costs more time.
uint64_t NumMeasured(const SteadyLoad& load) {
  constexpr double kTokens = 1.5e6;
  const double count =
      std::clamp(kTokens / (load.output_tokens + load.input_tokens / 16.0), 50.0, 1000.0);
  const auto whole = static_cast<uint64_t>(count);
  return whole - whole % ArrivalWindow(whole);
}

// The requests that are measured of a load that goes on: those that come after the first one has
// its answer that was not there from the start, with others behind them to their end. If by then
// many more or fewer are in flight, or there was always one that waited to run, the next ones are:
// near what a replica serves at most it takes long until as many run as always will. Each begins
// where arrivals have kept their rate.
class SteadyWindow {
 public:
  SteadyWindow(uint64_t num_seeds, uint64_t num_measured, LimitWatch limits)
      : num_seeds_(num_seeds), begin_(num_seeds), num_measured_(num_measured), limits_(limits) {}

  // False: all of it have their answers, or enough of them break a limit.
  bool Finish(uint64_t request, Replay& replay) {
    if (num_windows_ == 0) {
      // Those that it began with are gone by then; of answers so long that more run than are
      // measured it would take as long again.
      const bool is_long = num_seeds_ > num_measured_;
      if (is_long || request >= begin_) Begin(replay);
      if (!is_long) return true;
    }
    if (request < begin_ || request >= end()) return true;
    if (limits_.Add(replay.progress(request))) {
      is_steady_ = true;
      return false;
    }
    if (++num_finished_ < num_measured_) return true;
    const double margin = Margin(in_flight_before_);
    const double grown = static_cast<double>(replay.num_in_flight()) - in_flight_before_;
    const bool all_ran = replay.TakeAllRan();
    num_crowded_ += all_ran ? 0 : 1;
    is_steady_ = all_ran && grown <= margin;
    if (is_steady_ && grown >= -margin) return false;
    if (num_crowded_ == kMostCrowded || num_windows_ == kMostWindows) return false;
    Begin(replay);
    return true;
  }
  bool is_steady() const { return is_steady_; }
  uint64_t begin() const { return begin_; }
  uint64_t end() const { return begin_ + num_measured_; }

 private:
  static constexpr int kMostWindows = 4;
  static constexpr int kMostCrowded = 2;  // of them, in which one always waited

  void Begin(Replay& replay) {
    const uint64_t window = ArrivalWindow(num_measured_);
    const uint64_t num_windows = (replay.num_added() - num_seeds_ + window - 1) / window;
    begin_ = num_seeds_ + num_windows * window;
    in_flight_before_ = static_cast<double>(replay.num_in_flight());
    replay.TakeAllRan();
    num_finished_ = 0;
    limits_.Forget();
    ++num_windows_;
  }

  const uint64_t num_seeds_;
  uint64_t begin_;  // of the window; at first, of those that it did not begin with
  const uint64_t num_measured_;
  LimitWatch limits_;
  int num_windows_ = 0;
  int num_crowded_ = 0;
  uint64_t num_finished_ = 0;
  double in_flight_before_ = 0;
  bool is_steady_ = false;
};

}  // namespace

namespace {

// What each of some replicas gets of a trace.
QueueResult SimulateShares(const SimulatedReplica& replica, std::span<const TraceShare> shares) {
  const auto num_unmeasured = [](const TraceShare& share) {
    return static_cast<uint64_t>(kWarmUp * static_cast<double>(share.arrivals.size()));
  };
  uint64_t num_measured = 0;
  for (const TraceShare& share : shares) {
    num_measured += share.arrivals.size() - num_unmeasured(share);
  }
  LimitWatch limits(replica, num_measured);
  Measured measured;
  bool is_steady = true;
  bool goes_on = true;
  size_t num_left_out = 0;
  for (const TraceShare& share : shares) {
    if (!goes_on) break;
    Replay replay(replica);
    for (const Arrival& arrival : share.arrivals) {
      replay.arrivals().emplace(absl::UnixEpoch() + absl::Seconds(arrival.seconds), arrival);
    }
    const uint64_t begin = num_unmeasured(share);
    TraceEnd trace_end(share.arrivals.size());
    replay.Run([&](uint64_t request, absl::Time) {
      trace_end.Finish(replay);
      goes_on = request < begin || !limits.Add(replay.progress(request));
      return goes_on;
    });
    replay.Measure(begin, replay.num_added(), replica.request_ms, measured);
    is_steady = is_steady && trace_end.is_steady();
    num_left_out += share.num_left_out;
  }
  QueueResult result = measured.Result();
  result.num_replicas = static_cast<int>(shares.size());
  result.num_left_out = static_cast<int64_t>(num_left_out);
  result.is_steady = is_steady;
  return result;
}

// Of as many replicas as have enough requests together for a 95th percentile that is no luck.
std::vector<TraceShare> EnoughShares(const std::vector<Arrival>& trace, int num_replicas) {
  constexpr size_t kEnough = 200;
  std::vector<TraceShare> shares;
  size_t num_arrivals = 0;
  for (int i = 0; i < num_replicas && num_arrivals < kEnough; ++i) {
    shares.push_back(ShareOfTrace(trace, num_replicas, i));
    num_arrivals += shares.back().arrivals.size();
  }
  return shares;
}

}  // namespace

QueueResult SimulateQueue(const SimulatedReplica& replica, const std::vector<Arrival>& arrivals) {
  const TraceShare share = {.arrivals = arrivals};
  return SimulateShares(replica, {&share, 1});
}

QueueResult SimulateSteadyQueue(const SimulatedReplica& replica, const SteadyLoad& load) {
  constexpr uint64_t kFewest = 20;  // answers of a replica that gets too much
  const uint64_t num_measured = NumMeasured(load);
  Replay replay(replica);
  replay.Seed(load);
  const uint64_t num_seeds = replay.num_added();
  SteadyWindow window(num_seeds, num_measured, LimitWatch(replica, num_measured));
  replay.GoOn(
      PoissonArrivals(load.rate_per_s, std::llround(load.input_tokens),
                      std::llround(load.output_tokens), load.seed, ArrivalWindow(num_measured)),
      2 * static_cast<uint64_t>(replay.max_num_seqs()) + num_measured);
  uint64_t num_answers = 0;
  replay.Run([&](uint64_t request, absl::Time) {
    num_answers += request >= num_seeds ? 1 : 0;
    return replay.is_overrun() ? num_answers < kFewest : window.Finish(request, replay);
  });
  QueueResult result = replay.is_overrun()
                           ? replay.Result(num_seeds, replay.num_added(), replica.request_ms)
                           : replay.Result(window.begin(), window.end(), replica.request_ms);
  result.is_steady = window.is_steady() && !replay.is_overrun();
  return result;
}

QueueResult SimulatePattern(const SimulatedReplica& replica, const ArrivalPattern& pattern,
                            int num_replicas, double in_flight) {
  if (pattern.trace.empty()) {
    return SimulateSteadyQueue(replica, {pattern.rate_per_s / num_replicas, pattern.input_tokens,
                                         pattern.output_tokens, in_flight});
  }
  return SimulateShares(replica, EnoughShares(pattern.trace, num_replicas));
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
    replay.arrivals().emplace(now + absl::Seconds(replica.request_ms / 1e3), arrival);
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
