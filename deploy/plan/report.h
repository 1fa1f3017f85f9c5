// A plan for people and for programs. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "deploy/plan/pareto.h"
#include "deploy/plan/planner.h"
#include "nlohmann/json_fwd.hpp"

namespace lockstep::plan {

// The answer first, then memory, layouts, speed and sources: plain text of many lines.
std::string PlanText(const Plan& plan);
// One JSON object; bytes, milliseconds and US dollars, as the names say. chart: ParetoPoints.
std::string PlanJson(const Plan& plan, const std::vector<ParetoPoint>& chart);

// What requests see of the answer: half of them in its queue, where one was simulated, else the
// mean by formula.
struct ServedSpeed {
  double ttft_ms = 0;
  double ttft_p95_ms = 0;
  double tpot_ms = 0;
  double tpot_p95_ms = 0;
};
ServedSpeed SpeedOf(const Plan& plan);  // which has one

// Whether a token takes less of a GPU with the change than with the answer, which there is. Fewer
// GPUs may be so slow that it takes more.
bool IsCheaperPerToken(const Plan& plan, const Relaxation& relaxation);

// One line, and one object, of a simulated queue.
std::string QueueText(const QueueResult& queue);
nlohmann::ordered_json QueueJson(const QueueResult& queue);

// The command that starts the answer, of a directory that was named or a place for the built-in
// model; empty where `serve` cannot (Plan::not_served).
std::string LaunchCommand(const Plan& plan);

}  // namespace lockstep::plan
