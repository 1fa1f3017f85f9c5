#include "launcher/eval/score_board.h"

#include <algorithm>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "launcher/cli/values.h"

namespace lockstep {

double TaskScore::percent() const {
  if (num_questions == 0) return 0.0;
  return 100.0 * static_cast<double>(num_right) / static_cast<double>(num_questions);
}

absl::StatusOr<Thresholds> ParseThresholds(const std::vector<std::string>& items) {
  Thresholds thresholds;
  for (const std::string& item : items) {
    const size_t equals = item.rfind('=');
    const std::string task = equals == std::string::npos ? "" : item.substr(0, equals);
    const std::string number = equals == std::string::npos ? item : item.substr(equals + 1);
    double percent = 0.0;
    if (!absl::SimpleAtod(number, &percent) || !(percent >= 0.0 && percent <= 100.0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", item, "\" is neither a percentage from 0 to 100 nor TASK=PERCENTAGE"));
    }
    thresholds[task] = percent;
  }
  return thresholds;
}

void ScoreBoard::Add(const Question& question, const std::string& reply) {
  auto task = std::find_if(tasks_.begin(), tasks_.end(),
                           [&](const auto& entry) { return entry.first == question.task; });
  if (task == tasks_.end()) task = tasks_.insert(tasks_.end(), {question.task, {}});
  ++task->second.num_questions;
  if (IsRight(question, reply)) {
    ++task->second.num_right;
  } else {
    wrong_.push_back({question.task, question.messages.back().content, question.answer, reply});
  }
}

TaskScore ScoreBoard::total() const {
  TaskScore total;
  for (const auto& [task, score] : tasks_) {
    total.num_questions += score.num_questions;
    total.num_right += score.num_right;
  }
  return total;
}

absl::Status CheckThresholds(const Thresholds& thresholds, const std::vector<Question>& questions) {
  std::set<std::string> tasks;
  for (const Question& question : questions) tasks.insert(question.task);
  for (const auto& [name, wanted] : thresholds) {
    if (name.empty() || tasks.contains(name)) continue;
    return absl::InvalidArgumentError(absl::StrCat("there are no questions of task \"", name,
                                                   "\", but of ", absl::StrJoin(tasks, ", ")));
  }
  return absl::OkStatus();
}

std::vector<std::string> ScoreBoard::Misses(const Thresholds& thresholds) const {
  std::vector<std::string> misses;
  for (const auto& [name, wanted] : thresholds) {
    const auto task = std::find_if(tasks_.begin(), tasks_.end(),
                                   [&](const auto& entry) { return entry.first == name; });
    if (!name.empty() && task == tasks_.end()) {
      misses.push_back(absl::StrCat("there are no questions of task \"", name, "\""));
      continue;
    }
    const double reached = name.empty() ? total().percent() : task->second.percent();
    if (reached >= wanted) continue;
    misses.push_back(absl::StrFormat("%s: %.1f %% right, wanted %g %%",
                                     name.empty() ? "all questions" : name, reached, wanted));
  }
  return misses;
}

std::string ScoreBoard::ToText(bool show_wrong) const {
  std::string text = absl::StrFormat("%-16s %9s %7s %9s\n", "task", "questions", "right", "share");
  const auto add = [&text](const std::string& name, const TaskScore& score) {
    absl::StrAppendFormat(&text, "%-16s %9d %7d %7.1f %%\n", Excerpt(name, 16), score.num_questions,
                          score.num_right, score.percent());
  };
  for (const auto& [task, score] : tasks_) add(task, score);
  add("all", total());
  if (!show_wrong) return text;
  for (const WrongReply& wrong : wrong_) {
    const size_t tail = wrong.asked.size() - std::min<size_t>(wrong.asked.size(), 100);
    absl::StrAppend(&text, "\n", wrong.task, ": ...", OneLine(ValidUtf8(wrong.asked.substr(tail))),
                    "\n  wanted ", OneLine(wrong.answer), "\n  got    ",
                    Excerpt(OneLine(wrong.reply), 200), "\n");
  }
  return text;
}

nlohmann::ordered_json ScoreBoard::ToJson() const {
  const auto scored = [](nlohmann::ordered_json object, const TaskScore& score) {
    object["questions"] = score.num_questions;
    object["right"] = score.num_right;
    object["percent"] = score.percent();
    return object;
  };
  nlohmann::ordered_json json = scored(nlohmann::ordered_json::object(), total());
  json["tasks"] = nlohmann::ordered_json::array();
  for (const auto& [task, score] : tasks_) json["tasks"].push_back(scored({{"task", task}}, score));
  json["wrong"] = nlohmann::ordered_json::array();
  for (const WrongReply& wrong : wrong_) {
    json["wrong"].push_back({{"task", wrong.task},
                             {"asked", ValidUtf8(wrong.asked)},
                             {"answer", ValidUtf8(wrong.answer)},
                             {"reply", ValidUtf8(wrong.reply)}});
  }
  return json;
}

}  // namespace lockstep
