#include "tests/e2e/fault_case.h"

#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/check.h"
#include "tests/e2e/event_log.h"
#include "tests/e2e/health_watch.h"
#include "tests/support/read_file.h"
#include "tests/support/temp_directory.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

// Of a machine that others use too.
constexpr absl::Duration kPatience = absl::Seconds(180);
constexpr uint64_t kFirstEpoch = 1;

// A server with a runtime directory of its own.
class FaultyServer {
 public:
  explicit FaultyServer(const FaultOptions& options) {
    process_.emplace(Command(options), std::map<std::string, std::string>{
                                           {"XDG_RUNTIME_DIR", directory_.path().string()},
                                           {"LD_PRELOAD", options.preload}});
    log_.emplace(*process_);
    const auto ready = Wait("ready", kFirstEpoch);
    LS_CHECK(ready.has_value());  // with nothing wrong yet
    connection_ = *Connection::Open({.server = ready->event["address"]});
  }

  std::optional<EventLog::Entry> Wait(const std::string& name, uint64_t epoch) const {
    return log_->Wait(
        [&](const EventLog::Entry& entry) {
          return entry.name() == name && entry.epoch() == epoch;
        },
        kPatience);
  }
  // Of a rank that has joined.
  std::optional<pid_t> PidOf(int rank, uint64_t epoch) const {
    const auto joined = log_->Wait(
        [&](const EventLog::Entry& entry) {
          return entry.name() == "rank_joined" && entry.epoch() == epoch &&
                 entry.event["rank"] == rank;
        },
        kPatience);
    if (!joined) return std::nullopt;
    return joined->event["pid"].get<pid_t>();
  }

  Process& process() { return *process_; }
  const EventLog& log() const { return *log_; }
  const Connection& connection() const { return *connection_; }
  bool DirectoryIsEmpty() const { return fs::is_empty(directory_.path()); }

 private:
  static std::vector<std::string> Command(const FaultOptions& options) {
    return {options.lockstep, "serve", options.model, "--tp", absl::StrCat(options.tp), "--pp",
            absl::StrCat(options.pp), "--threads-per-rank", "1", "--num-kv-blocks", "1024",
            "--max-model-len", "1024", "--max-num-seqs", "32",
            // Small steps, so that a long prompt takes many.
            "--max-batched-tokens", "64", "--drain-seconds", "170", "--listen", "127.0.0.1:0",
            "--json"};
  }

  const TempDirectory directory_;
  std::optional<Process> process_;
  std::optional<EventLog> log_;
  std::unique_ptr<Connection> connection_;
};

bool HasVariable(pid_t pid, const std::string& variable) {
  const std::string environment = ReadFile(absl::StrCat("/proc/", pid, "/environ"));
  return absl::StrContains(absl::StrCat(std::string(1, '\0'), environment),
                           absl::StrCat(std::string(1, '\0'), variable, std::string(1, '\0')));
}

// Source: proc(5), SigCgt: the signals with a handler, bit n - 1 for signal n.
bool Catches(pid_t pid, int signal) {
  const std::string status = ReadFile(absl::StrCat("/proc/", pid, "/status"));
  const size_t at = status.find("SigCgt:");
  uint64_t mask = 0;
  return at != std::string::npos && absl::SimpleHexAtoi(status.substr(at + 8, 16), &mask) &&
         (mask >> (signal - 1) & 1) != 0;
}

// Of a rank that may not have joined: the process that mpirun started for it, once it is ready to
// exit.
std::optional<pid_t> StartingPidOf(const Process& server, int rank) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (absl::Now() < deadline) {
    for (const pid_t pid : server.Marked()) {
      if (HasVariable(pid, absl::StrCat("OMPI_COMM_WORLD_RANK=", rank)) && Catches(pid, SIGUSR2)) {
        return pid;
      }
    }
  }
  return std::nullopt;
}

bool IsAlive(pid_t pid) {
  const std::string stat = ReadFile(absl::StrCat("/proc/", pid, "/stat"));
  const size_t name_end = stat.rfind(") ");
  return name_end != std::string::npos && stat[name_end + 2] != 'Z';
}

// The rank that fails, at the moment at which it is to; unset when the moment does not come.
struct Victim {
  pid_t pid;
  uint64_t epoch;
};

class Injection {
 public:
  Injection(FaultyServer& server, Traffic& traffic, int world_size)
      : server_(server), traffic_(traffic), world_size_(world_size) {}

  std::optional<Victim> Await(Moment moment, int rank) {
    switch (moment) {
      case Moment::kUnderLoad:
        return When(rank, [](const Traffic::Snapshot& now) {
          return now.num_finished >= 10 && now.num_decoding >= 3;
        });
      case Moment::kPrefill:
        return When(rank, [](const Traffic::Snapshot& now) { return now.num_in_long_prefill > 0; });
      case Moment::kDecode:
        return When(rank, [](const Traffic::Snapshot& now) { return now.num_decoding >= 5; });
      case Moment::kInit:
        return AfterLossOf((rank + 1) % world_size_,
                           [&] { return StartingPidOf(server_.process(), rank); });
      case Moment::kLoad:
        return AfterLossOf((rank + 1) % world_size_,
                           [&] { return server_.PidOf(rank, kFirstEpoch + 1); });
      case Moment::kDrain:
        return InDrain(rank);
    }
    return std::nullopt;
  }

 private:
  std::optional<Victim> When(int rank,
                             const std::function<bool(const Traffic::Snapshot&)>& condition) {
    const auto pid = server_.PidOf(rank, kFirstEpoch);
    if (!pid || !traffic_.WaitUntil(condition, kPatience)) return std::nullopt;
    return Victim{*pid, kFirstEpoch};
  }

  std::optional<Victim> AfterLossOf(int other, const std::function<std::optional<pid_t>()>& pid) {
    const auto first = Await(Moment::kDecode, other);
    if (!first) return std::nullopt;
    ::kill(first->pid, SIGKILL);
    if (!server_.Wait("restarting", kFirstEpoch + 1)) return std::nullopt;
    const auto second = pid();
    if (!second) return std::nullopt;
    return Victim{*second, kFirstEpoch + 1};
  }

  std::optional<Victim> InDrain(int rank) {
    const auto victim = Await(Moment::kUnderLoad, rank);
    traffic_.ExpectDrain();
    server_.process().Signal(SIGTERM);
    const auto draining = server_.log().Wait(
        [](const EventLog::Entry& entry) { return entry.name() == "draining"; }, kPatience);
    return draining ? victim : std::nullopt;
  }

  FaultyServer& server_;
  Traffic& traffic_;
  const int world_size_;
};

double Seconds(absl::Duration duration) { return absl::ToDoubleSeconds(duration); }

// Reads off the log, when all answers are in, what followed the failure at `begin` of a rank of
// `epoch`.
Timeline TimelineOf(const FaultyServer& server, const Traffic& traffic, absl::Time begin,
                    uint64_t epoch, std::string& reason) {
  Timeline timeline;
  // A rank that never joined is missed by the launcher alone.
  const auto detected = server.log().Wait(
      [&](const EventLog::Entry& entry) {
        return (entry.name() == "rank_lost" && entry.epoch() == epoch) ||
               (entry.name() == "restarting" && entry.epoch() == epoch + 1);
      },
      kPatience);
  if (!detected) return timeline;
  timeline.detect = Seconds(detected->time - begin);
  if (const auto restarting = server.Wait("restarting", epoch + 1)) {
    reason = restarting->event.value("reason", "");
  }
  const auto ready = server.Wait("ready_again", epoch + 1);
  if (!ready) return timeline;
  absl::Time joined = detected->time;
  for (const EventLog::Entry& entry : server.log().entries()) {
    if (entry.name() == "rank_joined" && entry.epoch() == epoch + 1) joined = entry.time;
  }
  timeline.relaunch = Seconds(joined - detected->time);
  timeline.load = Seconds(ready->time - joined);
  for (const absl::Time time : traffic.token_times()) {
    if (time < ready->time) continue;
    timeline.token = Seconds(time - ready->time);
    break;
  }
  return timeline;
}

void CheckEnd(FaultyServer& server, Moment moment, uint64_t num_losses, FaultReport& report) {
  const auto expect = [&](bool condition, const std::string& problem) {
    if (!condition) report.problems.push_back(problem);
  };
  if (moment != Moment::kDrain) {
    const int64_t blocks = BlocksLeftInUse(server.connection());
    expect(blocks == 0, absl::StrCat(blocks, " cache blocks in use (-1: requests still run)"));
    server.process().Signal(SIGINT);
  }
  const auto code = server.process().Wait(kPatience);
  expect(code == 0, absl::StrCat("the server's exit code is ", code.value_or(-1), ": ",
                                 server.process().err()));
  expect(server.process().WaitUntilNoneMarked(absl::Seconds(5)), "processes are left");
  expect(server.DirectoryIsEmpty(), "files are left in the runtime directory");
  for (const EventLog::Entry& entry : server.log().entries()) {
    if (entry.name() != "rank_joined") continue;
    const pid_t pid = entry.event["pid"];
    expect(!IsAlive(pid), absl::StrCat("process ", pid, " of epoch ", entry.epoch(), " is left"));
  }
  const int num_restarts = server.log().Count("restarting");
  if (num_restarts == static_cast<int>(num_losses)) return;
  for (const EventLog::Entry& entry : server.log().entries()) {
    if (entry.name() == "restarting") expect(false, "restarted: " + entry.event.dump());
  }
  expect(false, absl::StrCat(num_restarts, " restarts instead of ", num_losses));
}

}  // namespace

Requests MakeRequests(const FaultOptions& options, int num, uint64_t seed) {
  FaultyServer server(options);
  const auto info = server.connection().GetServerInfo(absl::Seconds(10));
  LS_CHECK(info.ok());
  std::mt19937_64 random(seed);
  Requests requests;
  for (int i = 0; i < num; ++i) {
    Case c = RandomCase(random, info->vocab_size());
    c.cancel_after_tokens = -1;
    if (i % 2 == 0) c.request.mutable_sampling()->set_temperature(0);
    while (i % 5 == 0 && c.request.token_ids().ids_size() < 2 * Traffic::kLongPromptTokens) {
      c.request.mutable_token_ids()->add_ids(
          static_cast<int32_t>(3 + random() % static_cast<uint64_t>(info->vocab_size() - 3)));
    }
    requests.cases.push_back(std::move(c));
  }
  requests.expected.resize(requests.cases.size());
  std::vector<std::thread> clients;
  for (int client = 0; client < options.num_clients; ++client) {
    clients.emplace_back([&, client] {
      for (int i = client; i < num; i += options.num_clients) {
        requests.expected[i] = RunCase(server.connection(), requests.cases[i], false);
        LS_CHECK(requests.expected[i].status.ok());
      }
    });
  }
  for (std::thread& client : clients) client.join();
  return requests;
}

FaultReport RunFault(const FaultOptions& options, const Fault& fault, int rank,
                     const Requests& requests) {
  FaultReport report;
  FaultyServer server(options);
  const HealthWatch health(server.connection().server());
  Traffic traffic(server.connection(), requests.cases, requests.expected, options.num_clients);
  Injection injection(server, traffic, options.tp * options.pp);
  const std::optional<Victim> victim = injection.Await(fault.moment, rank);
  if (victim) {
    const absl::Time begin = absl::Now();
    if (::kill(victim->pid, fault.signal) != 0) report.problems.push_back("the rank was gone");
    report.traffic = traffic.Join();
    report.timeline = TimelineOf(server, traffic, begin, victim->epoch, report.reason);
    if (const auto at = health.FirstNotServing(begin)) {
      report.timeline.unhealthy = Seconds(*at - begin);
    }
  } else {
    report.problems.push_back("the moment did not come");
    report.traffic = traffic.Join();
  }
  for (const std::string& problem : report.traffic.problems) report.problems.push_back(problem);
  CheckEnd(server, fault.moment, victim ? victim->epoch : 0, report);
  if (report.timeline.token < 0) report.problems.push_back("it did not recover");
  return report;
}

}  // namespace lockstep::testing
