// The coefficients of an engine from measurements, as plan_fit and the accuracy test make them.
// Pure; any thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "deploy/plan/collectives.h"
#include "deploy/plan/engine_profile.h"
#include "deploy/plan/measurements.h"

namespace lockstep::plan {

struct EngineFit {
  EngineProfile profile;
  std::map<std::string, LoadPattern> patterns;  // by the engine's version
};

// Of one engine. start gives its limits and the values that coefficients stay near when nothing
// speaks about them (a format or rate that no measurement used).
EngineFit FitEngine(const EngineProfile& start, const std::vector<MeasuredCase>& cases);

// Then what experts add, from models that have some; all else stays as `start` has it.
EngineFit FitExperts(const EngineFit& start, const std::vector<MeasuredCase>& cases);

// Median and 90th percentile of |predicted / measured - 1|.
struct Accuracy {
  int num_cases = 0;
  double tpot_median = 0;
  double tpot_p90 = 0;
  double ttft_median = 0;
  double ttft_p90 = 0;
};
// Saturated cases are left out: their times are those of a queue.
Accuracy AccuracyOf(const EngineFit& fit, const std::vector<MeasuredCase>& cases);

// Of one link and number of ranks.
CollectiveFit FitAllReduce(int ranks, double link_gb_s,
                           const std::vector<MeasuredAllReduce>& measured);

}  // namespace lockstep::plan
