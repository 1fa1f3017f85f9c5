#include "launcher/eval/questions.h"

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

using Json = nlohmann::json;

absl::StatusOr<std::string> Text(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string() ||
      found->get_ref<const std::string&>().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is not a text"));
  }
  return found->get<std::string>();
}

absl::StatusOr<ChatMessage> ParseMessage(const Json& object) {
  if (!object.is_object()) return absl::InvalidArgumentError("a message is not an object");
  ChatMessage message;
  ASSIGN_OR_RETURN(message.role, Text(object, "role"));
  if (message.role != "system" && message.role != "user" && message.role != "assistant") {
    return absl::InvalidArgumentError(
        absl::StrCat("role \"", message.role, "\" is none of system, user, assistant"));
  }
  ASSIGN_OR_RETURN(message.content, Text(object, "content"));
  return message;
}

absl::StatusOr<Question> ParseQuestion(absl::string_view line) {
  const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return absl::InvalidArgumentError("not a JSON object");
  Question question;
  ASSIGN_OR_RETURN(question.task, Text(object, "task"));
  ASSIGN_OR_RETURN(question.answer, Text(object, "answer"));
  const auto messages = object.find("messages");
  if (messages == object.end() || !messages->is_array() || messages->empty()) {
    return absl::InvalidArgumentError("\"messages\" is not a list of messages");
  }
  for (const Json& entry : *messages) {
    ASSIGN_OR_RETURN(ChatMessage message, ParseMessage(entry));
    question.messages.push_back(std::move(message));
  }
  return question;
}

}  // namespace

absl::StatusOr<std::vector<Question>> ParseQuestions(absl::string_view lines) {
  std::vector<Question> questions;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(lines, '\n')) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    auto question = ParseQuestion(line);
    if (!question.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": ", question.status().message()));
    }
    questions.push_back(*std::move(question));
  }
  if (questions.empty()) return absl::InvalidArgumentError("there are no questions");
  return questions;
}

absl::string_view FinalAnswer(absl::string_view reply) {
  reply = absl::StripAsciiWhitespace(reply);
  const size_t newline = reply.rfind('\n');
  if (newline != absl::string_view::npos) reply.remove_prefix(newline + 1);
  return absl::StripAsciiWhitespace(reply);
}

bool IsRight(const Question& question, absl::string_view reply) {
  return FinalAnswer(reply) == FinalAnswer(question.answer);
}

}  // namespace lockstep
