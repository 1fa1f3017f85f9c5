#include "tests/bench/kernel_report.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "kernels/base/check.h"
#include "nlohmann/json.hpp"
#include "tests/bench/timing.h"

namespace lockstep::bench {

Timing Time(const ReadProbe& probe, const std::function<void(int)>& run) {
  constexpr int kTurns = 10;
  run(0);
  std::vector<double> times, bandwidths, ratios;
  double before = probe.Bandwidth(1);
  int next = 1;
  for (int turn = 0; turn < kTurns; ++turn) {
    std::vector<double> mine;
    const double begin = Seconds();
    while (mine.empty() || (Seconds() - begin < 0.04 && mine.size() < 50)) {
      const double start = Seconds();
      run(next++);
      mine.push_back(Seconds() - start);
    }
    const double after = probe.Bandwidth(1);
    bandwidths.push_back((before + after) / 2 / kGiga);
    ratios.push_back(1 / (Median(mine) * (before + after) / 2));
    times.insert(times.end(), mine.begin(), mine.end());
    before = after;
  }
  return {Median(times), *std::min_element(times.begin(), times.end()), Median(bandwidths),
          Median(ratios)};
}

void KernelReport::BeginTable(int threads) {
  threads_ = threads;
  std::printf("%-34s %5s %9s %9s %7s %7s %6s %6s\n", "case", "dtype", "ms", "best ms", "rate",
              "unit", "share", "of");
}

void KernelReport::Add(const KernelCase& what, const Timing& timing) {
  // Bound by whichever limit takes longer.
  const bool memory = what.bytes / timing.gb_per_s > what.flops / what.peak;
  const double rate = (memory ? what.bytes : what.flops) / timing.median / kGiga;
  const Result result = {what.name,
                         what.dtype,
                         threads_,
                         timing.median * 1e3,
                         timing.best * 1e3,
                         rate,
                         memory ? "GB/s" : "GFLOP/s",
                         memory ? what.bytes * timing.share_per_byte : rate / what.peak,
                         memory ? timing.gb_per_s : what.peak};
  std::printf("%-34s %5s %9.3f %9.3f %7.1f %7s %5.0f%% %6.0f\n", result.name.c_str(),
              result.dtype.c_str(), result.ms, result.best_ms, rate, result.unit,
              result.share * 100, result.limit);
  std::fflush(stdout);
  results_.push_back(result);
}

void KernelReport::WriteJson(const std::string& path) const {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Result& r : results_) {
    all.push_back({{"case", r.name},
                   {"dtype", r.dtype},
                   {"threads", r.threads},
                   {"ms", r.ms},
                   {"best_ms", r.best_ms},
                   {"rate", r.rate},
                   {"unit", r.unit},
                   {"share", r.share},
                   {"limit", r.limit}});
  }
  std::ofstream file(path);
  file << all.dump(2) << "\n";
  file.close();
  LS_CHECK(file.good()) << "cannot write " << path;
}

}  // namespace lockstep::bench
