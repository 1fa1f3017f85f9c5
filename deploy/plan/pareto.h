// Throughput per GPU against time per output token: what a layout gives under every load, and the
// front of those that no other beats in both. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "deploy/plan/planner.h"

namespace lockstep::plan {

struct ParetoPoint {
  Layout layout;
  double concurrency = 0;  // of one replica
  double tpot_ms = 0;
  double tokens_per_s_per_gpu = 0;
  bool on_front = false;
  bool is_answer = false;
};

// Every layout that holds with one replica's GPUs up to four times the answer's, at 1, 2, 4, ...
// requests as far as its KV cache reaches, and the answer at its load. By TPOT.
std::vector<ParetoPoint> ParetoPoints(const Plan& plan);

// About 20 lines of text; empty without points.
std::string ParetoText(const std::vector<ParetoPoint>& points);
std::string ParetoSvg(const Plan& plan, const std::vector<ParetoPoint>& points);
// A page of its own: the chart, the front as a table and the plan's text.
std::string ParetoHtml(const Plan& plan, const std::vector<ParetoPoint>& points);

}  // namespace lockstep::plan
