// What happens to requests when a rank fails, for every kind of failure and every rank.
//
//   fault_matrix --lockstep PROGRAM --model DIR --preload exit_on_signal.so [--tp 2] [--pp 2]
//                [--cases kill:0,stop:3,...] [--clients 10] [--requests 20] [--seed 1]
//
// The requests (greedy and seeded, some with prompts long enough to be caught in their prefill) are
// answered once by an undisturbed server. Then, for each case, a new server answers them from many
// clients while one rank fails:
//   kill, stop     SIGKILL or SIGSTOP while requests of all kinds run
//   prefill        exits while a long prompt is computed
//   decode         exits while requests decode
//   init, load     exits while it starts, or loads weights, after the loss of another rank
//   drain          exits while the server drains after SIGTERM
// Every accepted request must come out equal, no process of the job may be left, no cache block in
// use, and nothing but these failures may have caused a restart. Prints a line per case. Exit 0:
// all held.
#include <signal.h>

#include <cstdio>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/e2e/fault_case.h"

namespace lockstep::testing {
namespace {

constexpr Fault kFaults[] = {
    {"kill", SIGKILL, Moment::kUnderLoad},  {"stop", SIGSTOP, Moment::kUnderLoad},
    {"prefill", SIGUSR2, Moment::kPrefill}, {"decode", SIGUSR2, Moment::kDecode},
    {"init", SIGUSR2, Moment::kInit},       {"load", SIGUSR2, Moment::kLoad},
    {"drain", SIGUSR2, Moment::kDrain}};

struct MatrixOptions {
  FaultOptions fault;
  std::vector<std::string> cases;  // "kill:0"; empty = all
  int num_requests = 20;           // of each client
  uint64_t seed = 1;
};

struct MatrixCase {
  Fault fault;
  int rank;
};

std::vector<MatrixCase> CasesOf(const MatrixOptions& options) {
  std::vector<MatrixCase> cases;
  const int world_size = options.fault.tp * options.fault.pp;
  for (const Fault& fault : kFaults) {
    for (int rank = 0; rank < world_size; ++rank) {
      const std::string name = std::string(fault.name) + ":" + std::to_string(rank);
      const auto& wanted = options.cases;
      if (wanted.empty() || std::find(wanted.begin(), wanted.end(), name) != wanted.end()) {
        cases.push_back({fault, rank});
      }
    }
  }
  return cases;
}

void PrintRow(const MatrixCase& c, const FaultReport& report) {
  const Timeline& t = report.timeline;
  std::printf("%-8s %4d %8.3f %10.3f %9.2f %6.2f %7.3f %6d %8d %8d  %s%s\n", c.fault.name, c.rank,
              t.detect, t.unhealthy, t.relaunch, t.load, t.token, report.traffic.num_right,
              report.traffic.num_refused, report.traffic.num_retried,
              report.problems.empty() ? "" : "WRONG: ", report.reason.c_str());
  for (const std::string& problem : report.problems) std::printf("    %s\n", problem.c_str());
  std::fflush(stdout);
}

int Run(const MatrixOptions& options) {
  const std::vector<MatrixCase> cases = CasesOf(options);
  if (cases.empty() || (!options.cases.empty() && cases.size() != options.cases.size())) {
    std::fprintf(stderr, "fault_matrix: unknown name or rank in --cases\n");
    return 2;
  }
  const absl::Time begin = absl::Now();
  const int num_requests = options.num_requests * options.fault.num_clients;
  const Requests requests = MakeRequests(options.fault, num_requests, options.seed);
  std::printf("%d requests answered undisturbed in %.1f s\n\n", num_requests,
              absl::ToDoubleSeconds(absl::Now() - begin));
  std::printf("%-8s %4s %8s %10s %9s %6s %7s %6s %8s %8s  %s\n", "fault", "rank", "detect",
              "unhealthy", "relaunch", "load", "token", "right", "refused", "retried",
              "reason (times in seconds)");
  int num_wrong = 0;
  for (const MatrixCase& c : cases) {
    const FaultReport report = RunFault(options.fault, c.fault, c.rank, requests);
    PrintRow(c, report);
    num_wrong += !report.problems.empty();
  }
  std::printf("\n%zu cases, %d wrong, %.0f s\n", cases.size(), num_wrong,
              absl::ToDoubleSeconds(absl::Now() - begin));
  return num_wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) {
  lockstep::testing::MatrixOptions options;
  CLI::App app{"Requests survive every kind of failure of every rank."};
  app.add_option("--lockstep", options.fault.lockstep, "The program")->required();
  app.add_option("--model", options.fault.model, "A checkpoint")->required();
  app.add_option("--preload", options.fault.preload, "exit_on_signal as a library")->required();
  app.add_option("--tp", options.fault.tp)->check(CLI::Range(1, 64));
  app.add_option("--pp", options.fault.pp)->check(CLI::Range(1, 64));
  app.add_option("--cases", options.cases, "fault:rank,... (default: all)")->delimiter(',');
  app.add_option("--clients", options.fault.num_clients)->check(CLI::Range(1, 1000));
  app.add_option("--requests", options.num_requests, "Of each client")->check(CLI::Range(1, 1000));
  app.add_option("--seed", options.seed);
  CLI11_PARSE(app, argc, argv);
  return lockstep::testing::Run(options);
}
