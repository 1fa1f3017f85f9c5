// What kernel_bench has measured: a case's runs beside the memory's speed, as lines of a table and
// as JSON.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/bench/machine_limits.h"

namespace lockstep::bench {

struct Timing {
  double median;  // seconds
  double best;
  double gb_per_s;        // that the memory gave beside it, median
  double share_per_byte;  // of that speed, for each byte a run reads; median of turns
};

// Of run(i): ten turns of some 40 ms, with a look at the memory's speed after each.
Timing Time(const ReadProbe& probe, const std::function<void(int)>& run);

struct KernelCase {
  std::string name;
  std::string dtype;
  double bytes;  // that a run reads
  double flops;
  double peak;  // GFLOP/s of the instructions that it is made of
};

class KernelReport {
 public:
  // Cases from now on are of so many threads.
  void BeginTable(int threads);
  void Add(const KernelCase& what, const Timing& timing);
  // Ends the process where the file cannot be written.
  void WriteJson(const std::string& path) const;

 private:
  struct Result {
    std::string name;
    std::string dtype;
    int threads;
    double ms;  // median
    double best_ms;
    double rate;  // GB/s or GFLOP/s
    const char* unit;
    double share;  // of the limit, while it ran
    double limit;
  };

  int threads_ = 1;
  std::vector<Result> results_;
};

}  // namespace lockstep::bench
