// A plan for people and for programs. Pure; any thread.
#pragma once

#include <string>

#include "deploy/plan/planner.h"

namespace lockstep::plan {

// The answer first, then memory, layouts, speed and sources: plain text of many lines.
std::string PlanText(const Plan& plan);
// One JSON object; bytes, milliseconds and US dollars, as the names say.
std::string PlanJson(const Plan& plan);

// The command that starts the answer. model is what the user named.
std::string LaunchCommand(const Plan& plan);

}  // namespace lockstep::plan
