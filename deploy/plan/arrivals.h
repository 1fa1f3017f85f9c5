// When requests come, and how large they are. Pure but for reading a trace; any thread.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::plan {

struct Arrival {
  double seconds = 0;  // since the first
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
};

// Independent arrivals at a rate (exponential gaps, from a seed), all of one size and without end;
// but every `window` of them take window / rate seconds, else a thousand came up to a tenth faster
// or slower than the rate, and with each seed another queue.
class PoissonArrivals {
 public:
  static constexpr size_t kWindow = 250;

  PoissonArrivals(double rate_per_s, int64_t input_tokens, int64_t output_tokens, uint64_t seed,
                  size_t window = kWindow)
      : mean_gap_(1.0 / rate_per_s),
        gaps_(window),
        next_gap_(window),
        next_{0, input_tokens, output_tokens},
        random_(seed) {}
  Arrival Next();
  std::vector<Arrival> First(int count);

 private:
  void DrawGaps();

  double mean_gap_;
  std::vector<double> gaps_;  // of a window, seconds
  size_t next_gap_;
  Arrival next_;
  std::mt19937_64 random_;
};

// Lines "seconds,input,output", with or without a header, which has no number. Errors as ReadWhole
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

// What comes, to all replicas together: a trace, or independent requests at a rate.
struct ArrivalPattern {
  std::vector<Arrival> trace;
  double rate_per_s = 0;
  double input_tokens = 0;
  double output_tokens = 0;
};

// What one of several replicas gets of a trace: of every num_replicas requests one, at random,
// since every so many may be alike; as many from the first on as some seconds simulate (4 million
// tokens: 8,000 requests of 500). The shares of all replicas are the trace.
struct TraceShare {
  std::vector<Arrival> arrivals;
  size_t num_left_out = 0;  // of its share
};
TraceShare ShareOfTrace(const std::vector<Arrival>& trace, int num_replicas, int replica = 0);

}  // namespace lockstep::plan
