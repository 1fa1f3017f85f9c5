#include "launcher/gateway/assistant_text.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

const std::set<std::string> kFunctions = {"add"};
const std::set<std::string> kNoFunctions;

// "REASONING|CONTENT|name(arguments)..." of pieces of so many bytes, in which nothing is said
// twice.
std::string SaidInPieces(v1::Thought thought, bool is_apart, const std::set<std::string>& offered,
                         const std::string& text, size_t step) {
  AssistantText assistant({.thought = thought}, is_apart, offered);
  std::string reasoning, content, calls;
  const auto read = [&](size_t size, bool has_ended) {
    const AssistantText::Piece piece =
        assistant.Read(absl::string_view(text).substr(0, size), has_ended);
    reasoning += piece.reasoning;
    content += piece.content;
    for (const ToolCall& call : piece.calls) {
      absl::StrAppend(&calls, "|", call.name, "(", call.arguments, ")");
    }
  };
  for (size_t size = step; size < text.size(); size += step) read(size, false);
  read(text.size(), true);
  return absl::StrCat(reasoning, "|", content, calls);
}

TEST(AssistantTextTest, IsTheSameInPiecesOfAnySize) {
  struct Case {
    v1::Thought thought;
    const std::set<std::string>& offered;
    std::string text;
    std::string said;
    bool is_apart = true;
  };
  const std::string call = R"({"name": "add", "arguments": {"a": 1}})";
  const Case cases[] = {
      {v1::THOUGHT_NONE, kNoFunctions, "Hi <think>", "|Hi <think>"},
      {v1::THOUGHT_BEGUN, kNoFunctions, "So.\n</think>\n\nYes.", "So.|Yes."},
      {v1::THOUGHT_BEGUN, kNoFunctions, "So. " + call, "So. " + call + "|"},
      {v1::THOUGHT_BEGUN, kFunctions, "So.</think>\n\n" + call, "So.||add({\"a\":1})"},
      {v1::THOUGHT_ALLOWED, kFunctions,
       "<think>\nI <tool_call>\n</think>\n\nNow:<tool_call>" + call + "</tool_call>",
       "I <tool_call>|Now:|add({\"a\":1})"},
      {v1::THOUGHT_ALLOWED, kFunctions, call, "||add({\"a\":1})"},
      {v1::THOUGHT_ALLOWED, kFunctions, "<think>" + call, call + "|"},
      {v1::THOUGHT_ALLOWED, kFunctions, "</think>" + call, "|</think>" + call},
      {v1::THOUGHT_ALLOWED, kFunctions, " \n\nNo {call}", "| \n\nNo {call}"},
      {v1::THOUGHT_NONE, kFunctions, "\n\v\f" + call, "||add({\"a\":1})"},
      {v1::THOUGHT_BEGUN, kFunctions, "\nI <tool_call>.\n</think>\n\n" + call,
       "|\nI <tool_call>.\n</think>\n\n|add({\"a\":1})", false},
      {v1::THOUGHT_ALLOWED, kFunctions, "<think>So</think>\nYes " + call,
       "|<think>So</think>\nYes " + call, false},
      {v1::THOUGHT_ALLOWED, kNoFunctions, "\n<thi", "|\n<thi", false},
      {v1::THOUGHT_BEGUN, kNoFunctions, "So</thi", "|So</thi", false}};
  for (const Case& one : cases) {
    for (size_t step = 1; step <= one.text.size(); ++step) {
      EXPECT_EQ(SaidInPieces(one.thought, one.is_apart, one.offered, one.text, step), one.said)
          << one.text << " by " << step;
    }
  }
}

// Of a thought and an answer that go on with nothing but white space, in as many pieces: what was
// looked at is not looked at again.
TEST(AssistantTextTest, WhiteSpaceWithoutEndTakesTimeInProportion) {
  for (const char* begin : {"", "<think>", "<think>So", "<think>So</think>", "Yes"}) {
    AssistantText assistant({.thought = v1::THOUGHT_ALLOWED}, true, kFunctions);
    std::string text = begin;
    for (int i = 0; i < 200000; ++i) {
      text += "\n\n\n\n\n\n\n\n";
      assistant.Read(text, false);
    }
    EXPECT_EQ(assistant.Read(text + "!", true).calls.size(), 0u);
  }
}

}  // namespace
}  // namespace lockstep
