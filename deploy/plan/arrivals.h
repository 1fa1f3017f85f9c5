// When requests come, and how large they are. Pure but for reading a trace; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::plan {

struct Arrival {
  double seconds = 0;  // since the first
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
};

// Independent arrivals at a rate (exponential gaps, from a seed), all of one size.
std::vector<Arrival> PoissonArrivals(double rate_per_s, int64_t input_tokens, int64_t output_tokens,
                                     int count, uint64_t seed);

// Lines "seconds,input,output", with or without a header. Errors as ReadWhole
// (kernels/base/text_file.h), and INVALID_ARGUMENT naming the line: numbers out of range, times
// that go back, more than 100,000 lines.
absl::StatusOr<std::vector<Arrival>> LoadTrace(const std::string& path);

// What a trace comes to on average.
struct TraceSummary {
  double rate_per_s = 0;
  double input_tokens = 0;
  double output_tokens = 0;
  int64_t longest = 0;  // input and output of one request
};
// INVALID_ARGUMENT when all come at the same time.
absl::StatusOr<TraceSummary> Summarize(const std::vector<Arrival>& trace);

// What reaches one replica.
struct ArrivalStream {
  std::vector<Arrival> arrivals;
  // They are the beginning of what does not end: what counts is how requests fare once as many run
  // as always will, not while the first ones find nobody, or the last ones nobody any more.
  bool goes_on = false;
};

// Of several replicas: each its share of the trace or, without one, independent arrivals that go
// on; as many as some seconds simulate.
struct ArrivalPattern {
  std::vector<Arrival> trace;
  double rate_per_s = 0;
  double input_tokens = 0;
  double output_tokens = 0;
};
ArrivalStream ArrivalsOfReplica(const ArrivalPattern& pattern, int num_replicas);

}  // namespace lockstep::plan
