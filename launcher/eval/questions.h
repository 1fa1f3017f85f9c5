// Questions with known answers, and whether a reply is right. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/client/served_chat_template.h"

namespace lockstep {

struct Question {
  std::string task;  // what it is counted under
  std::vector<ChatMessage> messages;
  std::string answer;
};

// JSON lines: {"task": T, "messages": [{"role": R, "content": C}, ...], "answer": A}. At least one
// question. INVALID_ARGUMENT naming the line and what is wrong with it.
absl::StatusOr<std::vector<Question>> ParseQuestions(absl::string_view lines);

// What of a reply counts: its last line, without space around it. Lines before it are its working.
absl::string_view FinalAnswer(absl::string_view reply);
bool IsRight(const Question& question, absl::string_view reply);

}  // namespace lockstep
