#include "launcher/gateway/tool_calls.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

const std::set<std::string> kOffered = {"add", "now"};

// "CONTENT|name(arguments)|..."
std::string Shown(const std::string& text) {
  const ToolOutput output = SplitToolCalls(text, kOffered);
  std::string shown = output.content;
  for (const ToolCall& call : output.calls) {
    absl::StrAppend(&shown, "|", call.name, "(", call.arguments, ")");
  }
  return shown;
}

TEST(ToolCallsTest, JsonOfAnOfferedFunctionIsACall) {
  EXPECT_EQ(Shown(R"({"name": "add", "parameters": {"b": 2, "a": [1.5, "\u00e9"]}})"),
            "|add({\"b\":2,\"a\":[1.5,\"\xC3\xA9\"]})");
  EXPECT_EQ(Shown(" \n{\"name\": \"now\"}\n"), "|now({})");
  EXPECT_EQ(Shown(R"([{"name": "add", "arguments": {}}, {"name": "now", "arguments": {}}])"),
            "|add({})|now({})");
  EXPECT_EQ(Shown(R"(<|python_tag|>{"name": "now", "parameters": {}})"), "|now({})");
  EXPECT_EQ(
      Shown("{\"name\": \"add\", \"arguments\": {\"code\": \"" + std::string(99, '{') + "\"}}"),
      "|add({\"code\":\"" + std::string(99, '{') + "\"})");
  EXPECT_EQ(Shown(R"([TOOL_CALLS] [{"name": "now", "arguments": {}}])"), "|now({})");
}

// As deep as a schema may let them be; beyond that it is a text.
TEST(ToolCallsTest, ArgumentsMayNestDeeply) {
  const auto nested = [](int depth) {
    std::string json = "{}";
    for (int i = 1; i < depth; ++i) json = "{\"a\":" + json + "}";
    return json;
  };
  const auto call = [&](int depth) {
    return "{\"name\":\"add\",\"parameters\":" + nested(depth) + "}";
  };
  EXPECT_EQ(Shown(call(512)), "|add(" + nested(512) + ")");
  EXPECT_EQ(Shown(call(600)), call(600));
}

TEST(ToolCallsTest, MarkedCallsMayFollowText) {
  EXPECT_EQ(Shown("Let me see.\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n"
                  "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}"),
            "Let me see.\n|now({})|add({\"a\":1})");
}

TEST(ToolCallsTest, TextMayStandBesideMarkedCalls) {
  const std::string call = R"(<tool_call>{"name": "now", "arguments": {}}</tool_call>)";
  EXPECT_EQ(Shown(call + " bye"), " bye|now({})");
  EXPECT_EQ(Shown("So: " + call + " and " + call + "\n"), "So:  and |now({})|now({})");
  EXPECT_EQ(Shown(call + " <tool_call>no"), call + " <tool_call>no");  // not a part of it alone
}

TEST(ToolCallsTest, ArgumentsAreAnObjectOrAStringOfOne) {
  EXPECT_EQ(Shown(R"({"name": "add", "arguments": "{\"a\": 5}"})"), "|add({\"a\":5})");
  EXPECT_EQ(Shown(R"({"name": "add", "arguments": null, "type": "function"})"), "|add({})");
  for (const std::string text :
       {R"({"name": "add", "arguments": [5]})", R"({"name": "add", "arguments": "5"})",
        R"({"name": "add", "arguments": "\"{}\""})", R"({"name": "add", "parameters": 5})",
        R"({"name": "add", "args": {"a": 5}})", R"({"name": "now", "description": "A file"})"}) {
    EXPECT_EQ(Shown(text), text);
  }
}

TEST(ToolCallsTest, AnArgumentMayHoldAMarker) {
  const std::string call =
      R"(<tool_call>{"name": "add", "arguments": {"a": "</tool_call><tool_call>"}}</tool_call>)";
  EXPECT_EQ(Shown("So: " + call + "\n" + call),
            R"(So: |add({"a":"</tool_call><tool_call>"})|add({"a":"</tool_call><tool_call>"}))");
  std::string many = R"(<tool_call>{"name": "add", "arguments": {"a": ")";
  for (int i = 0; i < 100000; ++i) many += "</tool_call>";
  EXPECT_EQ(Shown(many), many);
}

TEST(ToolCallsTest, OfAConstrainedOutputItsFormAloneIsRead) {
  const auto shown = [](const std::string& text, v1::ToolCalls::Form only) {
    const ToolOutput output = SplitToolCalls(text, kOffered, only);
    return absl::StrCat(output.content, "|", output.calls.size());
  };
  const std::string json = R"({"name": "now", "parameters": {}})";
  const std::string list = R"([{"name": "now", "arguments": {}}])";
  const std::string marked = R"(<tool_call>{"name": "now", "arguments": {}}</tool_call>)";
  const std::string turned = R"({"parameters": {}, "name": "now"})";
  EXPECT_EQ(shown(json, v1::ToolCalls::FORM_JSON), "|1");
  EXPECT_EQ(shown(list, v1::ToolCalls::FORM_LIST), "|1");
  EXPECT_EQ(shown(marked, v1::ToolCalls::FORM_MARKED), "|1");
  for (const std::string& other :
       {list, marked, turned, R"({"name": "\u006eow"})" + std::string()}) {
    EXPECT_EQ(shown(other, v1::ToolCalls::FORM_JSON), other + "|0");
  }
  for (const std::string& other : {json, marked, turned}) {
    EXPECT_EQ(shown(other, v1::ToolCalls::FORM_LIST), other + "|0");
  }
  for (const std::string& other : {json, list, turned}) {
    EXPECT_EQ(shown(other, v1::ToolCalls::FORM_MARKED), other + "|0");
  }
}

TEST(ToolCallsTest, WhatIsNoCallIsText) {
  std::string deep = R"({"name": "add", "parameters": )";
  for (int i = 0; i < 100000; ++i) deep += "{\"a\":";
  for (const std::string& text :
       {std::string("42"), std::string(""), std::string("{}"), std::string("[]"),
        std::string("[1]"), std::string(R"({"name": "rm", "parameters": {}})"),
        std::string(R"({"name": "add", "parameters": {}} and more)"),
        std::string(R"({"name": "add", "parameters": {})"),
        std::string(R"([{"name": "add", "parameters": {}}, 3])"),
        std::string("<tool_call>{\"name\": \"rm\"}</tool_call>"), deep}) {
    EXPECT_EQ(Shown(text), text);
  }
}

// Whatever a stream has told of a text that grows, by single bytes or at once, is content in the
// end.
TEST(ToolCallsTest, NothingIsToldThatTurnsOutToBeACall) {
  for (const std::string& text :
       {std::string("plain text < and <tool_cal, no call"),
        std::string("see <tool_call>{\"name\": \"now\"}</tool_call>"),
        std::string("<tool_call>{\"name\": \"now\"}</tool_call>"),
        std::string("{\"name\": \"now\"}"), std::string("[TOOL_CALLS][{\"name\": \"now\"}]"),
        std::string("<|python_tag|>{\"name\": \"now\"}"), std::string("<|python"),
        std::string("[a list]"), std::string("x<tool_call>rubbish")}) {
    const std::string content = SplitToolCalls(text, kOffered).content;
    for (const size_t step : {size_t{1}, size_t{3}, text.size()}) {
      size_t told = 0;
      for (size_t size = 0; size <= text.size(); size += step) {
        const size_t certain = NumContentBytes(text.substr(0, size), told);
        EXPECT_LE(certain, size);
        told = std::max(told, certain);
      }
      EXPECT_LE(told, content.size()) << text;
    }
  }
  EXPECT_EQ(NumContentBytes("Hello", 0), 5u);  // plain text is told as it comes
  EXPECT_EQ(NumContentBytes("Hello <tool", 5), 6u);
}

}  // namespace
}  // namespace lockstep
