// The figures that people quote about serving Llamas, computed with the planner's own functions,
// beside what holds in practice. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::plan {

// A quoted figure and what the planner's arithmetic gives for the same question.
struct Figure {
  std::string section;
  std::string question;
  double quoted = 0;
  double computed = 0;
  std::string unit;
  std::string remark;  // how they differ from practice, and why
};

std::vector<Figure> FiguresOf405bSlides();

// Text of a set of examples: "405b-slides". NOT_FOUND with the nearest name.
absl::StatusOr<std::string> ExplainText(const std::string& name);

}  // namespace lockstep::plan
