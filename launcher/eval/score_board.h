// Right answers per task, as a table and as JSON. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/eval/questions.h"
#include "nlohmann/json.hpp"

namespace lockstep {

struct TaskScore {
  int64_t num_questions = 0;
  int64_t num_right = 0;
  double percent() const;  // 0 without questions
};

// The percentages that must be reached: of a task, or of all questions under the name "".
using Thresholds = std::map<std::string, double>;
// "95" or "recall=95" each. INVALID_ARGUMENT naming the item.
absl::StatusOr<Thresholds> ParseThresholds(const std::vector<std::string>& items);

// INVALID_ARGUMENT: one is of a task without questions.
absl::Status CheckThresholds(const Thresholds& thresholds, const std::vector<Question>& questions);

class ScoreBoard {
 public:
  // Tasks are shown in the order in which they come first.
  void Add(const Question& question, const std::string& reply);

  TaskScore total() const;
  // A line for each threshold that is missed, or that names a task without questions.
  std::vector<std::string> Misses(const Thresholds& thresholds) const;

  // A table; with the wrong replies below it when asked for.
  std::string ToText(bool show_wrong) const;
  // {"questions", "right", "percent", "tasks": [...], "wrong": [...]}.
  nlohmann::ordered_json ToJson() const;

 private:
  struct WrongReply {
    std::string task;
    std::string asked;  // the last message
    std::string answer;
    std::string reply;
  };

  std::vector<std::pair<std::string, TaskScore>> tasks_;
  std::vector<WrongReply> wrong_;
};

}  // namespace lockstep
