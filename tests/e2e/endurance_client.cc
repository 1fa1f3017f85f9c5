// How a server bears time and load; every answer is compared with what the request returns alone
// from a second server.
//
//   endurance_client --reference HOST:PORT --server HOST:PORT --server-pid PID [--seconds 600]
//                    [--kill-every 60] [--seed 1]
//
// 1. disconnect: clients that vanish in mid-generation; how long until their blocks are free.
// 2. overload: the peak in a closed loop, then an open loop at four times its rate: tokens per
//    second of what completes, and how fast the rest is refused.
// 3. soak: open loop at 80 % of the peak, a fifth cancelled, a random rank killed or stopped every
//    --kill-every seconds; afterwards no block in use, memory and descriptors as before.
// Exit 0: every answer was right and nothing is left.
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/time/clock.h"
#include "launcher/client/connection.h"
#include "launcher/client/generation_call.h"
#include "tests/e2e/random_cases.h"
#include "tests/e2e/rank_killer.h"

namespace lockstep::testing {
namespace {

constexpr int kNumCases = 150;
constexpr int kNumHeavyCases = 24;
constexpr size_t kPeakConcurrency = 80;  // fills every slot of the server
constexpr double kOverload = 4.0;
constexpr double kSoakLoad = 0.8;
constexpr size_t kMaxInFlight = 1024;

struct EnduranceOptions {
  std::string reference;
  std::string server;
  int server_pid = 0;
  double seconds = 600;
  double kill_every = 60;
  uint64_t seed = 1;
};

double Seconds(absl::Duration duration) { return absl::ToDoubleSeconds(duration); }

struct Totals {
  int completed = 0;
  int cancelled = 0;
  int refused = 0;
  int wrong = 0;
  int64_t tokens = 0;  // of completed requests
  std::vector<double> refusal_ms;

  double RefusalMs(double quantile) {
    if (refusal_ms.empty()) return 0;
    std::sort(refusal_ms.begin(), refusal_ms.end());
    return refusal_ms[static_cast<size_t>(quantile * (refusal_ms.size() - 1))];
  }
};

// Sends cases and compares their outcomes. Calls are driven by gRPC's threads: a thread for each
// would be most of the load here.
class Load {
 public:
  Load(const Connection& server, const std::vector<Case>& cases, const std::vector<Outcome>& alone)
      : server_(server), cases_(cases), alone_(alone) {}

  // `concurrency` requests in flight at a time.
  Totals ClosedLoop(absl::Duration duration, size_t concurrency) {
    const absl::Time end = absl::Now() + duration;
    while (absl::Now() < end) {
      WaitForRoom(concurrency - 1);
      Send(0.0);
    }
    WaitForRoom(0);
    return TakeTotals();
  }

  // `rate` requests per second, answered or not. each_tick: called before each of them.
  template <typename EachTick>
  Totals OpenLoop(absl::Duration duration, double rate, double cancel_share, EachTick each_tick) {
    const absl::Time begin = absl::Now();
    for (int64_t sent = 0; absl::Now() - begin < duration; ++sent) {
      const absl::Time due = begin + absl::Seconds(static_cast<double>(sent) / rate);
      if (due > absl::Now()) absl::SleepFor(due - absl::Now());
      each_tick();
      WaitForRoom(kMaxInFlight);
      Send(cancel_share);
    }
    WaitForRoom(0);
    return TakeTotals();
  }

  Totals Peek() {
    std::lock_guard lock(mutex_);
    return totals_;
  }

 private:
  struct InFlight {
    size_t index = 0;
    Case c;
    Outcome outcome;
    absl::Time begin = absl::Now();
    std::unique_ptr<GenerationCall> call;
  };

  // Until at most so many are in flight; destroys those that are done.
  void WaitForRoom(size_t most) {
    std::vector<std::unique_ptr<InFlight>> done;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_in_flight_ <= most; });
    done.swap(done_);
    lock.unlock();
  }

  void Send(double cancel_share) {
    const size_t number = next_++;
    auto in_flight = std::make_unique<InFlight>();
    in_flight->index = number % cases_.size();
    in_flight->c = cases_[in_flight->index];
    const int total = alone_[in_flight->index].num_tokens();
    const bool cancels =
        static_cast<double>(number * 7919 % 1000) < cancel_share * 1000 && total > 1;
    in_flight->c.cancel_after_tokens = cancels ? total / 2 : -1;
    InFlight* call = in_flight.release();  // until on_done
    std::lock_guard lock(mutex_);          // on_done waits until `call` is set
    ++num_in_flight_;
    call->call = std::make_unique<GenerationCall>(
        server_, call->c.request, absl::Minutes(5),
        GenerationCall::Handlers{.on_event =
                                     [this, call](const v1::GenerateEvent& event) {
                                       call->outcome.Add(event);
                                       const int limit = call->c.cancel_after_tokens;
                                       if (limit < 0 || call->outcome.num_tokens() < limit)
                                         return true;
                                       std::lock_guard lock(mutex_);  // `call` may not be set yet
                                       call->call->Cancel();
                                       return true;
                                     },
                                 .on_done =
                                     [this, call](const grpc::Status& status) {
                                       call->outcome.status = status;
                                       Finish(std::unique_ptr<InFlight>(call));
                                     }});
  }

  void Finish(std::unique_ptr<InFlight> call) {
    const Outcome& outcome = call->outcome;
    const absl::Duration took = absl::Now() - call->begin;
    const bool refused = outcome.status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED &&
                         outcome.tokens.empty();
    const std::string difference = refused ? "" : Compare(call->c, alone_[call->index], outcome);
    std::lock_guard lock(mutex_);
    if (refused) {
      ++totals_.refused;
      totals_.refusal_ms.push_back(1e3 * Seconds(took));
    } else if (!difference.empty()) {
      ++totals_.wrong;
      std::fprintf(stderr, "request %zu: %s\n%s\n", call->index, difference.c_str(),
                   call->c.request.ShortDebugString().c_str());
    } else if (!outcome.status.ok()) {
      ++totals_.cancelled;
    } else {
      ++totals_.completed;
      totals_.tokens += outcome.num_tokens();
    }
    --num_in_flight_;
    done_.push_back(std::move(call));
    changed_.notify_one();
  }

  Totals TakeTotals() {
    std::lock_guard lock(mutex_);
    return std::exchange(totals_, {});
  }

  const Connection& server_;
  const std::vector<Case>& cases_;
  const std::vector<Outcome>& alone_;
  size_t next_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t num_in_flight_ = 0;
  std::vector<std::unique_ptr<InFlight>> done_;  // not destroyed inside their own callbacks
  Totals totals_;
};

// Requests whose tokens, not whose number, are the load: clients share the cores with the server
// here, and a thousand calls a second would measure them.
Case HeavyCase(uint64_t seed) {
  Case c;
  c.request.mutable_token_ids()->add_ids(1);
  c.request.mutable_sampling()->set_num_outputs(4);
  c.request.mutable_sampling()->set_seed(seed);
  c.request.mutable_stop()->set_max_tokens(120);
  c.request.mutable_stop()->set_ignore_eos(true);
  return c;
}

// How long after a client vanished its blocks are free, at worst, over some tries.
int Disconnect(const Connection& server) {
  double worst_ms = 0;
  for (int i = 0; i < 10; ++i) {
    Case c;
    c.request.mutable_token_ids()->add_ids(1);
    c.request.mutable_sampling()->set_num_outputs(16);
    c.request.mutable_sampling()->set_seed(static_cast<uint64_t>(i));
    c.request.mutable_stop()->set_max_tokens(250);
    c.request.mutable_stop()->set_ignore_eos(true);
    c.cancel_after_tokens = 200;
    RunCase(server, c, true);
    const absl::Time gone = absl::Now();
    while (true) {
      const auto status = server.GetStatus(absl::Seconds(5));
      if (!status.ok()) return 1;
      if (status->kv_blocks_in_use() == 0) break;
      if (absl::Now() - gone > absl::Seconds(10)) {
        std::fprintf(stderr, "blocks of a client that is gone are still in use after 10 s\n");
        return 1;
      }
    }
    worst_ms = std::max(worst_ms, 1e3 * Seconds(absl::Now() - gone));
  }
  std::printf("disconnect: blocks free after at most %.1f ms (10 clients that vanished)\n",
              worst_ms);
  return 0;
}

int Soak(const Connection& server, Load& load, double peak_rate, const EnduranceOptions& options) {
  RankKiller killer(server, absl::Seconds(options.kill_every), options.seed);
  const absl::Time begin = absl::Now();
  absl::Time next_report = begin + absl::Seconds(5);
  int64_t settled_bytes = 0;
  int64_t settled_fds = 0;
  const Totals totals =
      load.OpenLoop(absl::Seconds(options.seconds), kSoakLoad * peak_rate, 0.2, [&] {
        killer.Tick();
        const double share = Seconds(absl::Now() - begin) / options.seconds;
        if (settled_bytes == 0 && share > 0.3) {
          settled_bytes = ResidentBytes(options.server_pid);
          settled_fds = NumDescriptors(options.server_pid);
        }
        if (absl::Now() < next_report) return;
        next_report = absl::Now() + absl::Seconds(std::max(5.0, options.seconds / 20));
        const Totals so_far = load.Peek();
        std::printf(
            "soak: %3.0f %%, %d completed, %d cancelled, %d refused, %d wrong, %.1f MB, "
            "%ld descriptors\n",
            100 * share, so_far.completed, so_far.cancelled, so_far.refused, so_far.wrong,
            1e-6 * static_cast<double>(ResidentBytes(options.server_pid)),
            static_cast<long>(NumDescriptors(options.server_pid)));
        std::fflush(stdout);
      });
  const int64_t blocks = BlocksLeftInUse(server);
  const int64_t bytes = ResidentBytes(options.server_pid);
  const int64_t fds = NumDescriptors(options.server_pid);
  std::printf(
      "soak: %d completed, %d cancelled, %d refused, %d wrong; %ld blocks in use after; "
      "controller %.1f -> %.1f MB, %ld -> %ld descriptors\n",
      totals.completed, totals.cancelled, totals.refused, totals.wrong, static_cast<long>(blocks),
      1e-6 * static_cast<double>(settled_bytes), 1e-6 * static_cast<double>(bytes),
      static_cast<long>(settled_fds), static_cast<long>(fds));
  const bool grown = HasGrown(settled_bytes, bytes) || fds > settled_fds + 16;
  if (grown) std::fprintf(stderr, "memory or descriptors grew\n");
  return totals.wrong != 0 || blocks != 0 || grown ? 1 : 0;
}

int Overload(const Connection& reference, const Connection& server,
             const EnduranceOptions& options) {
  std::vector<Case> cases;
  std::vector<Outcome> alone;
  for (int i = 0; i < kNumHeavyCases; ++i) {
    cases.push_back(HeavyCase(static_cast<uint64_t>(i)));
    alone.push_back(RunCase(reference, cases.back(), false));
  }
  Load load(server, cases, alone);
  const absl::Duration phase = absl::Seconds(std::clamp(options.seconds / 5, 5.0, 20.0));
  const absl::Time peak_begin = absl::Now();
  const Totals peak = load.ClosedLoop(phase, kPeakConcurrency);
  const double peak_seconds = Seconds(absl::Now() - peak_begin);
  const double peak_rate = peak.completed / peak_seconds;
  const double peak_tokens = static_cast<double>(peak.tokens) / peak_seconds;
  std::printf("peak of heavy requests: %.1f requests/s, %.0f tokens/s, %d wrong\n", peak_rate,
              peak_tokens, peak.wrong);
  const absl::Time begin = absl::Now();
  Totals over = load.OpenLoop(phase, kOverload * peak_rate, 0.0, [] {});
  const double over_tokens = static_cast<double>(over.tokens) / Seconds(absl::Now() - begin);
  std::printf(
      "overload: %.0f times the rate, goodput %.0f tokens/s (%.0f %% of the peak), %d refused "
      "within p50 %.1f, p99 %.1f, max %.1f ms, %d wrong\n",
      kOverload, over_tokens, 100 * over_tokens / peak_tokens, over.refused, over.RefusalMs(0.5),
      over.RefusalMs(0.99), over.RefusalMs(1.0), over.wrong);
  std::fflush(stdout);
  return peak.wrong != 0 || over.wrong != 0 ? 1 : 0;
}

int Run(const EnduranceOptions& options) {
  const auto reference = Connection::Open({.server = options.reference});
  const auto server = Connection::Open({.server = options.server});
  if (!reference.ok() || !server.ok()) return 1;
  const auto info = (*server)->GetServerInfo(absl::Seconds(5));
  if (!info.ok()) return 1;
  std::mt19937_64 random(options.seed);
  std::vector<Case> cases;
  std::vector<Outcome> alone;
  for (int i = 0; i < kNumCases; ++i) {
    cases.push_back(RandomCase(random, info->vocab_size()));
    alone.push_back(RunCase(**reference, cases.back(), false));
  }
  if (Disconnect(**server) != 0) return 1;

  if (Overload(**reference, **server, options) != 0) return 1;

  Load load(**server, cases, alone);
  const absl::Duration phase = absl::Seconds(std::clamp(options.seconds / 5, 4.0, 20.0));
  const Totals peak = load.ClosedLoop(phase, kPeakConcurrency);
  const double peak_rate = peak.completed / Seconds(phase);
  std::printf("peak: %.0f requests/s, %d wrong\n", peak_rate, peak.wrong);
  std::fflush(stdout);
  if (peak.wrong != 0 || peak.completed == 0) return 1;
  return Soak(**server, load, peak_rate, options);
}

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) {
  lockstep::testing::EnduranceOptions options;
  CLI::App app{"Load, overload and time: every answer right, nothing left."};
  app.add_option("--reference", options.reference, "Server that answers alone")->required();
  app.add_option("--server", options.server, "Server under load")->required();
  app.add_option("--server-pid", options.server_pid, "Its process")->required();
  app.add_option("--seconds", options.seconds, "Of the soak")->check(CLI::Range(1.0, 1e6));
  app.add_option("--kill-every", options.kill_every, "Seconds")->check(CLI::Range(0.5, 1e6));
  app.add_option("--seed", options.seed);
  CLI11_PARSE(app, argc, argv);
  return lockstep::testing::Run(options);
}
