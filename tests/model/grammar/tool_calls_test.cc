// Calls of functions, and the texts around them.
#include "model/grammar/tool_calls.h"

#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/grammar/constraint.h"
#include "model/json/strict_json.h"
#include "tests/support/grammar_texts.h"

namespace lockstep::grammar {
namespace {

using ::testing::HasSubstr;
using Form = ToolCalls::Form;

constexpr char kAddSchema[] = R"({"type": "object", "properties": {"a": {"type": "integer"}},
    "required": ["a"], "additionalProperties": false})";

absl::StatusOr<Grammar> Compile(const ToolCalls& calls) {
  return CompileConstraint({OutputConstraint::Kind::kToolCalls, TextOf(calls)});
}

Grammar CallsOf(Form form, bool required) {
  auto compiled = Compile({form, {{"add", kAddSchema}, {"at", ""}, {"é\"", ""}}, required});
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  return *std::move(compiled);
}

TEST(ToolCallGrammarTest, ACallThatMustBeMadeIsAllThereIs) {
  const Grammar json = CallsOf(Form::kJson, true);
  EXPECT_TRUE(Matches(json, R"({"name": "add", "parameters": {"a": 1}})"));
  EXPECT_TRUE(Matches(json, R"({"name":"at","parameters":{}})"));
  EXPECT_TRUE(Matches(json, R"({"name": "é\"", "parameters": {}})"));
  for (const char* other :
       {"", "Hi", R"({"name": "add", "parameters": {"a": "1"}})",
        R"({"name": "add", "arguments": {"a": 1}})", R"({"name": "rm", "parameters": {}})",
        R"({"name": "at", "parameters": {"a": 1}})", R"([{"name": "at", "parameters": {}}])",
        R"({"name": "at", "parameters": {}} and more)"}) {
    EXPECT_FALSE(Matches(json, other)) << other;
  }
  const Grammar list = CallsOf(Form::kList, true);
  EXPECT_TRUE(Matches(list, R"([{"name": "add", "arguments": {"a": 1}}])"));
  EXPECT_FALSE(
      Matches(list, R"([{"name": "at", "arguments": {}}, {"name": "at", "arguments": {}}])"));
  EXPECT_FALSE(Matches(list, "[]"));
  const Grammar marked = CallsOf(Form::kMarked, true);
  EXPECT_TRUE(Matches(marked, "<tool_call>\n{\"name\": \"at\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_TRUE(Matches(marked, "<tool_call>{\"name\": \"at\", \"arguments\": {}}</tool_call>"));
  EXPECT_FALSE(Matches(marked, "{\"name\": \"at\", \"arguments\": {}}"));
  EXPECT_FALSE(Matches(marked, "So:<tool_call>{\"name\": \"at\", \"arguments\": {}}</tool_call>"));
}

TEST(ToolCallGrammarTest, FreeTextMayEndInMarkedCalls) {
  const Grammar marked = CallsOf(Form::kMarked, false);
  const std::string call =
      "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  for (const std::string& text :
       {std::string(), std::string("Hi <b> <tool_call"), call, "So:\n" + call,
        "So:\n" + call + "\n" + call, std::string(R"({"name": "rm"})")}) {
    EXPECT_TRUE(Matches(marked, text)) << text;
  }
  for (const std::string& text : {std::string("<tool_call>"), "So:" + call + " and so on",
                                  std::string("<tool_call>\n{\"name\": \"rm\"}\n</tool_call>"),
                                  "So:" + call + "<tool_call>"}) {
    EXPECT_FALSE(Matches(marked, text)) << text;
  }
  EXPECT_TRUE(IsPrefix(marked, "So:<tool_call>\n{\"name\": \"a"));
  EXPECT_FALSE(IsPrefix(marked, "So:<tool_call>\n{\"name\": \"r"));
  EXPECT_FALSE(IsPrefix(marked, "So:<tool_call> "));
}

// Whether a text begins like a call, said without a grammar.
bool BeginsLikeACall(std::string_view text, Form form) {
  const auto skip = [&] {
    while (!text.empty() && absl::StrContains(" \t\r\n", text[0])) text.remove_prefix(1);
  };
  std::vector<std::string> opening = {"{", "\"name\"", ":"};
  if (form == Form::kList) opening.insert(opening.begin(), "[");
  for (const std::string& token : opening) {
    skip();
    if (text.substr(0, token.size()) != token) return false;
    text.remove_prefix(token.size());
  }
  skip();
  for (const char* name : {"\"add\"", "\"at\"", R"("é\"")"}) {
    if (text.substr(0, std::string_view(name).size()) == name) return true;
  }
  return false;
}

TEST(ToolCallGrammarTest, WhatDoesNotBeginLikeACallIsFree) {
  static const std::vector<std::string> kPieces = {"{",
                                                   "[",
                                                   "\"",
                                                   "\"name\"",
                                                   ": ",
                                                   ":",
                                                   " ",
                                                   "\n",
                                                   "\"a",
                                                   "d",
                                                   "dd\"",
                                                   "t\"",
                                                   "\"é\\\"\"",
                                                   "é",
                                                   "\"add\"",
                                                   "\"at\"",
                                                   "name",
                                                   "}",
                                                   ", \"parameters\": {}}",
                                                   "\"rm\"",
                                                   "Hi"};
  for (const Form form : {Form::kJson, Form::kList}) {
    const Grammar grammar = CallsOf(form, false);
    std::mt19937 random(5);
    int num_begun = 0;
    for (int i = 0; i < 20000; ++i) {
      std::string text;
      if (random() % 2 == 0) text = form == Form::kList ? "[{\"name\":" : " {\"name\":";
      for (size_t left = random() % 6; left > 0; --left) text += kPieces[random() % kPieces.size()];
      if (BeginsLikeACall(text, form)) {
        ++num_begun;
      } else {
        EXPECT_TRUE(Matches(grammar, text)) << text;
      }
    }
    EXPECT_GT(num_begun, 100);
  }
}

TEST(ToolCallGrammarTest, WhatBeginsLikeACallIsOne) {
  const Grammar json = CallsOf(Form::kJson, false);
  const std::string call = R"({"name": "add", "parameters": {"a": 1}})";
  EXPECT_TRUE(Matches(json, call));
  EXPECT_TRUE(Matches(json, "\n " + call));
  EXPECT_FALSE(Matches(json, call + "."));
  EXPECT_FALSE(Matches(json, R"({"name": "add"})"));
  EXPECT_FALSE(Matches(json, R"({"name": "add", "parameters": {"a": "1"}})"));
  EXPECT_TRUE(Matches(json, R"({"name": "Ada", "born": 1815})"));
  EXPECT_TRUE(Matches(json, R"({"name": "adder"})"));
  EXPECT_TRUE(IsPrefix(json, R"({"name": "add)"));
  EXPECT_FALSE(IsPrefix(json, R"({"name": "add", "args)"));
  const Grammar list = CallsOf(Form::kList, false);
  EXPECT_TRUE(
      Matches(list, R"([{"name": "at", "arguments": {}}, {"name": "at", "arguments": {}}])"));
  EXPECT_FALSE(Matches(list, R"([{"name": "at", "arguments": {}}, 3])"));
  EXPECT_TRUE(Matches(list, call)) << "not as such a model writes it";
}

TEST(ToolCallGrammarTest, MayFollowAThought) {
  auto grammar = CompileConstraint({OutputConstraint::Kind::kToolCalls,
                                    TextOf({Form::kMarked, {{"at", ""}}, true}),
                                    OutputConstraint::Thought::kBegun});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  EXPECT_TRUE(Matches(*grammar,
                      "I <tool_call> it.</think>\n\n<tool_call>\n"
                      "{\"name\": \"at\", \"arguments\": {}}\n</tool_call>"));
}

TEST(ToolCallGrammarTest, SaysWhatIsWrong) {
  const auto error = [](const ToolCalls& calls) {
    return std::string(Compile(calls).status().message());
  };
  EXPECT_THAT(error({Form::kJson, {}, true}), HasSubstr("at least one function"));
  EXPECT_THAT(error({Form::kJson, {{"f", ""}, {"", ""}}, true}),
              HasSubstr("function 1 has no name"));
  EXPECT_THAT(error({Form::kJson, {{"f", R"({"properties": {"age": {"not": {}}}})"}}, false}),
              HasSubstr("function \"f\": \"#/properties/age\""));
  EXPECT_THAT(error({Form::kJson, {{"f", "{"}}, true}), HasSubstr("function \"f\": "));
  for (const char* text : {"", "[]", "{}", R"({"form": 3, "required": true, "functions": []})",
                           R"({"form": 0, "required": true, "functions": [["f"]]})",
                           R"({"form": 0, "required": 1, "functions": [["f", ""]]})"}) {
    EXPECT_FALSE(CompileConstraint({OutputConstraint::Kind::kToolCalls, text}).ok()) << text;
  }
}

TEST(ToolCallGrammarTest, ManyFunctionsWithLongNamesFit) {
  for (const Form form : {Form::kJson, Form::kList, Form::kMarked}) {
    ToolCalls calls{form, {}, false};
    for (int i = 0; i < 128; ++i) {
      calls.functions.push_back({absl::StrCat(i, std::string(60, 'x')), kAddSchema});
    }
    const auto grammar = Compile(calls);
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    EXPECT_TRUE(Matches(*grammar, "Hi"));
  }
}

}  // namespace
}  // namespace lockstep::grammar
