// What an assistant's text holds: a thought, an answer, calls of functions. Pure.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "launcher/client/thought_reader.h"
#include "launcher/gateway/tool_calls.h"
#include "lockstep/v1/generation.pb.h"

namespace lockstep {

// How such a text is read.
struct AssistantForm {
  v1::Thought thought = v1::THOUGHT_NONE;  // what it may begin with
  // Calls of that form alone (SplitToolCalls).
  std::optional<v1::ToolCalls::Form> calls = std::nullopt;
  bool has_short_ids = false;  // of calls (ToolCallId)
};

// Of a text that goes on, in pieces that are never taken back.
class AssistantText {
 public:
  struct Piece {
    std::string reasoning;
    std::string content;
    std::vector<ToolCall> calls;  // with the last piece
  };

  // is_apart: the thought, which else is content, too, as it is written. offered: names of
  // functions that may be called, which must outlive it.
  AssistantText(AssistantForm form, bool is_apart, const std::set<std::string>& offered)
      : form_(form), reader_(form.thought), is_apart_(is_apart), offered_(offered) {}

  // text: all of it so far. What is sure by now and was not before; with has_ended, all the rest.
  Piece Read(absl::string_view text, bool has_ended);

 private:
  std::string NewAnswer(absl::string_view answer);

  const AssistantForm form_;
  ThoughtReader reader_;
  const bool is_apart_;
  const std::set<std::string>& offered_;
  size_t num_before_ = 0;  // bytes told, of what comes before the answer
  size_t num_answer_ = 0;  // and of the answer
  size_t num_space_ = 0;   // bytes that an answer begins with
};

}  // namespace lockstep
