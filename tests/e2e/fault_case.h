// One server, its requests and the failure of one rank.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/e2e/traffic.h"

namespace lockstep::testing {

enum class Moment {
  kUnderLoad,  // requests of all kinds run
  kPrefill,    // a long prompt is computed
  kDecode,
  kInit,  // it starts, after the loss of another rank
  kLoad,  // it loads weights, after the loss of another rank
  kDrain,
};
struct Fault {
  const char* name;
  int signal;  // SIGUSR2: the rank exits (exit_on_signal.cc)
  Moment moment;
};

struct FaultOptions {
  std::string lockstep;
  std::string model;
  std::string preload;  // exit_on_signal as a library
  int tp = 2;
  int pp = 2;
  int num_clients = 10;
};

struct Requests {
  std::vector<Case> cases;
  std::vector<Outcome> expected;
};
// Answered by an undisturbed server. `num` of them, the same for the same seed.
Requests MakeRequests(const FaultOptions& options, int num, uint64_t seed);

// When the failure was seen and mended, in seconds; -1 = not seen.
struct Timeline {
  double detect = -1;     // from the failure to the event that names it
  double unhealthy = -1;  // from the failure to health's NOT_SERVING
  double relaunch = -1;   // from the event to the last rank of the new job that joins
  double load = -1;       // from there to the server that serves again
  double token = -1;      // from there to the next token of any request
};
struct FaultReport {
  Timeline timeline;
  Traffic::Result traffic;
  std::string reason;  // as the server tells it
  std::vector<std::string> problems;
};
FaultReport RunFault(const FaultOptions& options, const Fault& fault, int rank,
                     const Requests& requests);

}  // namespace lockstep::testing
