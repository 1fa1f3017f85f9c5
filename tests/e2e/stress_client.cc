// Many random requests at once against one server must return, one by one, what each returns alone
// from another.
//
//   stress_client --reference HOST:PORT --server HOST:PORT [--requests 200] [--rounds 10] [--seed
//   1]
//
// The reference server answers every request by itself, the other all of them together, a tenth
// cancelled on the way (those must have delivered a prefix). After each round no cache block may be
// in use; over the rounds no process of the server may grow. Exit 0: all of that held.
#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/time/time.h"
#include "launcher/client/connection.h"
#include "tests/e2e/random_cases.h"

namespace lockstep::testing {
namespace {

struct StressOptions {
  std::string reference;
  std::string server;
  int num_requests = 200;
  int num_rounds = 10;
  uint64_t seed = 1;
  int server_pid = 0;
};

int RunRound(const Connection& server, const std::vector<Case>& cases,
             const std::vector<Outcome>& alone) {
  std::vector<Outcome> together(cases.size());
  std::vector<std::thread> clients;
  for (size_t i = 0; i < cases.size(); ++i) {
    clients.emplace_back([&, i] { together[i] = RunCase(server, cases[i], true); });
  }
  for (std::thread& client : clients) client.join();
  int num_wrong = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string difference = Compare(cases[i], alone[i], together[i]);
    if (difference.empty()) continue;
    ++num_wrong;
    std::fprintf(stderr, "request %zu: %s\n%s\n", i, difference.c_str(),
                 cases[i].request.ShortDebugString().c_str());
  }
  return num_wrong;
}

int Run(const StressOptions& options) {
  const auto reference = Connection::Open({.server = options.reference});
  const auto server = Connection::Open({.server = options.server});
  if (!reference.ok() || !server.ok()) return 1;
  const auto info = (*server)->GetServerInfo(absl::Seconds(5));
  if (!info.ok()) return 1;

  std::mt19937_64 random(options.seed);
  std::vector<Case> cases;
  std::vector<Outcome> alone;
  for (int i = 0; i < options.num_requests; ++i) {
    cases.push_back(RandomCase(random, info->vocab_size()));
    alone.push_back(RunCase(**reference, cases.back(), false));
  }
  std::printf("%d requests answered alone\n", options.num_requests);

  int64_t settled_bytes = 0;
  for (int round = 1; round <= options.num_rounds; ++round) {
    const int num_wrong = RunRound(**server, cases, alone);
    const int64_t blocks = BlocksLeftInUse(**server);
    const int64_t bytes = ResidentBytes(**server, options.server_pid);
    std::printf("round %d: %d wrong, %ld blocks in use after, %.1f MB resident\n", round, num_wrong,
                static_cast<long>(blocks), static_cast<double>(bytes) * 1e-6);
    std::fflush(stdout);
    if (num_wrong != 0 || blocks != 0) return 1;
    // Arenas and buffers fill in the first rounds; afterwards nothing may accumulate.
    if (round == std::min(3, options.num_rounds)) settled_bytes = bytes;
    if (round > 3 && HasGrown(settled_bytes, bytes)) {
      std::fprintf(stderr, "memory grew from %ld to %ld bytes\n", static_cast<long>(settled_bytes),
                   static_cast<long>(bytes));
      return 1;
    }
  }
  const auto status = (*server)->GetStatus(absl::Seconds(5));
  if (status.ok()) {
    std::printf("%lu preemptions, %lu prompt tokens from the prefix cache\n",
                static_cast<unsigned long>(status->num_preemptions()),
                static_cast<unsigned long>(status->prompt_tokens_cached()));
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) {
  lockstep::testing::StressOptions options;
  CLI::App app{"Random requests together must return what each returns alone."};
  app.add_option("--reference", options.reference, "Server that answers alone")->required();
  app.add_option("--server", options.server, "Server that answers all at once")->required();
  app.add_option("--server-pid", options.server_pid, "Its process, whose memory is watched too");
  app.add_option("--requests", options.num_requests)->check(CLI::Range(1, 10000));
  app.add_option("--rounds", options.num_rounds)->check(CLI::Range(1, 1000));
  app.add_option("--seed", options.seed);
  CLI11_PARSE(app, argc, argv);
  return lockstep::testing::Run(options);
}
