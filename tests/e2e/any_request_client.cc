// Any request that generation.proto can express, from many clients that read, leave, are slow or
// late, abort, attach and are wrong, while ranks are killed.
//
//   any_request_client --server HOST:PORT --server-pid PID --reference HOST:PORT --model DIR
//                      [--seconds 20] [--seed 1] [--kill-every 0] [--journal] [--no-prefix-cache]
//                      [--restarts]
//
// Each stream must be what the request asked for (delivery_checks.h) and, bit for bit, what the
// reference server returns for the request alone; wrong requests must be refused naming field,
// value and limit. Afterwards nothing runs, no block is in use, every accepted request ended once,
// and no memory or descriptor is left. Case N of a seed draws the same each time: --case N. Exit 0:
// all of that held.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "launcher/client/connection.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/e2e/any_case.h"
#include "tests/e2e/random_cases.h"
#include "tests/e2e/rank_killer.h"
#include "tests/e2e/truth.h"

namespace lockstep::testing {
namespace {

constexpr int kMaxFailures = 5;
constexpr absl::Duration kPauseOfRefused = absl::Milliseconds(100);

struct Options {
  std::string server;
  int server_pid = 0;
  std::string reference;
  std::string model;
  double seconds = 20;
  uint64_t seed = 1;
  double kill_every = 0;
  int num_threads = 24;
  int64_t only_case = -1;
  bool journal = false;
  bool no_prefix_cache = false;
  bool restarts = false;
};

// What happened, over all threads.
class Report {
 public:
  void Fail(uint64_t number, const std::string& story, const Problems& problems,
            const std::string& request) {
    std::lock_guard lock(mutex_);
    if (++num_failed_ > kMaxFailures) return;
    std::fprintf(stderr, "case %lu (%s):\n", static_cast<unsigned long>(number), story.c_str());
    for (const std::string& problem : problems) std::fprintf(stderr, "  %s\n", problem.c_str());
    std::fprintf(stderr, "  %s\n", request.substr(0, 4000).c_str());
  }

  void Add(const CaseResult& result) {
    std::lock_guard lock(mutex_);
    ++num_stories_[result.story];
    num_accepted_ += result.num_accepted;
    num_refused_ += result.num_refused;
    num_unknown_ += result.num_unknown;
    for (const auto& observed : result.observed) {
      // Of one that attached, who computed what is not known.
      if (!observed.delivery.attached) num_tokens_ += observed.delivery.num_tokens();
      num_cached_ += observed.delivery.num_cached();
    }
  }

  bool failed() {
    std::lock_guard lock(mutex_);
    return num_failed_ > 0;
  }
  int64_t num_accepted() const { return num_accepted_; }
  int64_t num_refused() const { return num_refused_; }
  int64_t num_unknown() const { return num_unknown_; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_cached() const { return num_cached_; }

  void Print() {
    std::string stories;
    for (const auto& [story, count] : num_stories_)
      absl::StrAppend(&stories, ", ", story, " ", count);
    std::printf("%ld accepted, %ld refused, %ld tokens%s; %d failed\n",
                static_cast<long>(num_accepted_), static_cast<long>(num_refused_),
                static_cast<long>(num_tokens_), stories.c_str(), num_failed_);
  }

 private:
  std::mutex mutex_;
  int num_failed_ = 0;
  std::map<std::string, int> num_stories_;
  int64_t num_accepted_ = 0;
  int64_t num_refused_ = 0;
  int64_t num_unknown_ = 0;
  int64_t num_tokens_ = 0;
  int64_t num_cached_ = 0;
};

class Run {
 public:
  Run(const Options& options, const Connection& server, const Connection& reference,
      ServerFacts facts)
      : options_(options),
        server_(server),
        facts_(std::move(facts)),
        truth_(reference,
               [this](uint64_t number, const CaseResult::Observed& observed, Problems problems) {
                 report_.Fail(number, "compared with the reference", problems,
                              observed.request.ShortDebugString());
               }) {}

  // False: something was wrong.
  bool All() {
    const auto before = server_.GetStatus(absl::Seconds(5));
    if (!before.ok()) {
      std::fprintf(stderr, "%s\n", before.status().ToString().c_str());
      return false;
    }
    std::vector<std::thread> clients;
    const int num_threads = options_.only_case >= 0 ? 1 : options_.num_threads;
    for (int i = 0; i < num_threads; ++i) clients.emplace_back([this] { RunClient(); });
    Watch();
    for (std::thread& client : clients) client.join();
    const int num_judged = truth_.Finish();
    report_.Print();
    std::printf("%d compared with the reference\n", num_judged);
    return CheckEnd(*before) && !report_.failed();
  }

 private:
  void RunClient() {
    while (absl::Now() < end_ && !report_.failed()) {
      const bool only_one = options_.only_case >= 0;
      const uint64_t number = only_one ? static_cast<uint64_t>(options_.only_case) : next_++;
      AnyCase one(server_, facts_, options_.seed * 1'000'003 + number);
      CaseResult result = one.Run();
      report_.Add(result);
      if (result.queue_was_full) absl::SleepFor(kPauseOfRefused);
      if (!result.problems.empty()) {
        report_.Fail(
            number, result.story, result.problems,
            result.observed.empty() ? "" : result.observed.front().request.ShortDebugString());
      }
      for (auto& observed : result.observed) truth_.Judge(number, std::move(observed));
      if (only_one) return;
    }
  }

  void Watch() {
    const absl::Duration every = absl::Seconds(options_.kill_every > 0 ? options_.kill_every : 1e9);
    RankKiller killer(server_, every, options_.seed);
    const absl::Time begin = absl::Now();
    while (absl::Now() < end_ && !report_.failed() && options_.only_case < 0) {
      killer.Tick();
      absl::SleepFor(absl::Milliseconds(50));
      if (settled_bytes_ != 0 || absl::Now() - begin < absl::Seconds(options_.seconds) / 3)
        continue;
      settled_bytes_ = ResidentBytes(options_.server_pid);
      settled_fds_ = NumDescriptors(options_.server_pid);
    }
  }

  bool CheckEnd(const v1::GetStatusResponse& before) {
    const int64_t blocks = BlocksLeftInUse(server_);
    const auto after = server_.GetStatus(absl::Seconds(5));
    if (!after.ok()) {
      std::fprintf(stderr, "%s\n", after.status().ToString().c_str());
      return false;
    }
    const auto since = [&](auto field) {
      return static_cast<int64_t>(((*after).*field)() - (before.*field)());
    };
    using Status = v1::GetStatusResponse;
    const int64_t accepted = since(&Status::requests_accepted);
    const int64_t ended = since(&Status::requests_finished) + since(&Status::requests_aborted);
    const int64_t rejected = since(&Status::requests_rejected);
    const int64_t bytes = ResidentBytes(options_.server_pid);
    const int64_t fds = NumDescriptors(options_.server_pid);
    std::printf(
        "server: %ld accepted, %ld ended, %ld rejected, %lu preemptions, %lu prompt tokens cached, "
        "%lu of %lu guesses right, %ld blocks in use; %.1f -> %.1f MB, %ld -> %ld descriptors\n",
        static_cast<long>(accepted), static_cast<long>(ended), static_cast<long>(rejected),
        static_cast<unsigned long>(after->num_preemptions()),
        static_cast<unsigned long>(after->prompt_tokens_cached()),
        static_cast<unsigned long>(after->draft_tokens_accepted()),
        static_cast<unsigned long>(after->draft_tokens()), static_cast<long>(blocks),
        1e-6 * static_cast<double>(settled_bytes_), 1e-6 * static_cast<double>(bytes),
        static_cast<long>(settled_fds_), static_cast<long>(fds));
    bool right = true;
    const auto check = [&](bool holds, const char* what) {
      if (!holds) std::fprintf(stderr, "at the end: %s\n", what);
      right = right && holds;
    };
    check(after->state() == Status::STATE_SERVING, "it does not serve");
    check(blocks == 0, "blocks are in use");
    if (options_.restarts) return right;
    check(accepted == ended, "not every accepted request ended once");
    check(accepted >= report_.num_accepted() &&
              accepted <= report_.num_accepted() + report_.num_unknown(),
          "it accepted another number of requests than its clients were told");
    check(rejected >= report_.num_refused() &&
              rejected <= report_.num_refused() + report_.num_unknown(),
          "it refused another number of requests than its clients were told");
    check(since(&Status::tokens_generated) >= report_.num_tokens(),
          "it counts fewer tokens than its clients got");
    check(since(&Status::prompt_tokens_cached) >= report_.num_cached(),
          "its clients were told of more cached tokens than it counts");
    check(settled_bytes_ == 0 || !HasGrown(settled_bytes_, bytes), "its memory grew");
    check(settled_bytes_ == 0 || fds <= settled_fds_ + 16, "its descriptors grew");
    return right;
  }

  const Options& options_;
  const Connection& server_;
  const ServerFacts facts_;
  const absl::Time end_ = absl::Now() + absl::Seconds(options_.seconds);
  std::atomic<uint64_t> next_ = 0;
  Report report_;
  int64_t settled_bytes_ = 0;
  int64_t settled_fds_ = 0;
  Truth truth_;
};

int Main(const Options& options) {
  const auto server = Connection::Open({.server = options.server});
  const auto reference = Connection::Open({.server = options.reference});
  const auto info = server.ok() ? (*server)->GetServerInfo(absl::Seconds(5)) : server.status();
  if (!info.ok() || !reference.ok()) {
    std::fprintf(stderr, "%s%s\n", info.status().ToString().c_str(),
                 reference.status().ToString().c_str());
    return 1;
  }
  const auto tokenizer = Tokenizer::Load(options.model);  // it need not have one
  const ServerFacts facts{.info = *info,
                          .tokenizer = tokenizer.ok() ? tokenizer->get() : nullptr,
                          .has_journal = options.journal,
                          .caches_prefixes = !options.no_prefix_cache,
                          .may_restart = options.restarts};
  std::printf("seed %lu\n", static_cast<unsigned long>(options.seed));
  std::fflush(stdout);
  return Run(options, **server, **reference, facts).All() ? 0 : 1;
}

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) {
  lockstep::testing::Options options;
  CLI::App app{"Any request, and what a client may do with it: every stream right, nothing left."};
  app.add_option("--server", options.server, "Server under load")->required();
  app.add_option("--server-pid", options.server_pid, "Its process")->required();
  app.add_option("--reference", options.reference, "Server that answers alone")->required();
  app.add_option("--model", options.model, "Directory of the model that both serve")->required();
  app.add_option("--seconds", options.seconds, "How long")->check(CLI::Range(1.0, 1e6));
  app.add_option("--seed", options.seed);
  app.add_option("--kill-every", options.kill_every, "Seconds; 0 = never");
  app.add_option("--threads", options.num_threads, "Clients")->check(CLI::Range(1, 1000));
  app.add_option("--case", options.only_case, "This one alone");
  app.add_flag("--journal", options.journal, "The server keeps one");
  app.add_flag("--no-prefix-cache", options.no_prefix_cache, "The server has none");
  app.add_flag("--restarts", options.restarts, "The server dies and comes again: it counts anew");
  CLI11_PARSE(app, argc, argv);
  return lockstep::testing::Main(options);
}
