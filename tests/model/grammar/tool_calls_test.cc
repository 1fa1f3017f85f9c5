// Calls of functions, and the texts around them.
#include "model/grammar/tool_calls.h"

#include <random>
#include <regex>
#include <set>
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
  auto compiled = Compile({form, required, {{"add", kAddSchema}, {"at", ""}, {"é\"", ""}}});
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  return *std::move(compiled);
}

TEST(ToolCallGrammarTest, ACallThatMustBeMadeIsAllThereIs) {
  const Grammar json = CallsOf(Form::kJson, true);
  EXPECT_TRUE(Matches(json, R"({"name": "add", "parameters": {"a": 1}})"));
  EXPECT_TRUE(Matches(json, R"({"name":"at","parameters":{}})"));
  EXPECT_TRUE(Matches(json, R"({"type": "function", "name": "at", "parameters": {}})"));
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
       {std::string(), std::string("Hi <b> <tool_call"), call, "So:\n" + call, call + "\n\n",
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

const std::set<std::string> kNames = {"add", "at", "é\""};

// Whether a text begins like a call, said another way.
bool SeemsACall(std::string_view text, Form form) {
  static const std::string kObject =
      R"(\{( |\n[ \t]*)?("type": ?"function",( |\n[ \t]*)?)?"name": ?)";
  static const std::regex kJson(R"([ \t\r\n]*)" + kObject);
  static const std::regex kList(R"([ \t\r\n]*\[( |\n[ \t]*)?)" + kObject);
  std::match_results<std::string_view::const_iterator> match;
  if (!std::regex_search(text.begin(), text.end(), match, form == Form::kList ? kList : kJson,
                         std::regex_constants::match_continuous)) {
    return false;
  }
  text.remove_prefix(static_cast<size_t>(match.length()));
  for (const char* name : {"\"add\"", "\"at\"", R"("é\"")"}) {
    if (text.substr(0, std::string_view(name).size()) == name) return true;
  }
  return false;
}

TEST(ToolCallGrammarTest, WhatDoesNotBeginLikeACallIsFree) {
  static const std::vector<std::string> kPieces = {"{",
                                                   R"("type": "function", )",
                                                   R"("type":"function",)",
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
    for (int i = 0; i < 4000; ++i) {
      std::string text;
      if (random() % 2 == 0) text = form == Form::kList ? "[{" : " {";
      if (random() % 4 == 0) text += R"("type": "function",)";
      if (random() % 2 == 0) text += R"("name":)";
      for (size_t left = random() % 6; left > 0; --left) text += kPieces[random() % kPieces.size()];
      EXPECT_EQ(BeginsLikeACall(text, form, kNames), SeemsACall(text, form)) << text;
      if (SeemsACall(text, form)) {
        ++num_begun;
      } else {
        EXPECT_TRUE(Matches(grammar, text)) << text;
      }
    }
    EXPECT_GT(num_begun, 40);
  }
}

TEST(ToolCallGrammarTest, WhatBeginsLikeACallIsOne) {
  const Grammar json = CallsOf(Form::kJson, false);
  const std::string call = R"({"name": "add", "parameters": {"a": 1}})";
  EXPECT_TRUE(Matches(json, call));
  EXPECT_TRUE(Matches(json, "\n " + call));
  EXPECT_FALSE(Matches(json, call + "."));
  EXPECT_FALSE(Matches(json, R"({"name": "add"})"));
  EXPECT_FALSE(IsPrefix(json, R"({"type": "function", "name": "add", "parameters": {"a": ")"));
  EXPECT_TRUE(Matches(json, R"({"type": "function", "name": "add", "parameters": {"a": 1}})"));
  EXPECT_TRUE(Matches(json, R"({"type": "function", "name": "adder"})"));
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

constexpr char kAnswer[] = R"({"type": "object", "properties": {"sum": {"type": "integer"}},
    "required": ["sum"], "additionalProperties": false})";

TEST(ToolCallGrammarTest, WhatIsNoCallMayHaveToBeAnAnswer) {
  const std::string answer = R"({"sum": 3})";
  for (const auto& [form, call] : {std::pair(Form::kJson, R"({"name": "at", "parameters": {}})"),
                                   std::pair(Form::kList, R"([{"name": "at", "arguments": {}}])"),
                                   std::pair(Form::kMarked,
                                             "<tool_call>\n{\"name\": \"at\", "
                                             "\"arguments\": {}}\n</tool_call>")}) {
    const auto grammar = Compile({form, false, {{"add", kAddSchema}, {"at", ""}}, kAnswer});
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    EXPECT_TRUE(Matches(*grammar, answer));
    EXPECT_TRUE(Matches(*grammar, call));
    for (const std::string& other :
         {std::string(), std::string("Hi"), std::string(R"({"sum": "3"})"),
          "So: " + std::string(call), call + answer,
          std::string(R"({"name": "rm", "parameters": {}})")}) {
      EXPECT_FALSE(Matches(*grammar, other)) << other;
    }
  }
  const auto many = Compile({Form::kMarked, false, {{"at", ""}}, kAnswer});
  const std::string call = R"(<tool_call>{"name": "at", "arguments": {}}</tool_call>)";
  EXPECT_TRUE(Matches(*many, call + "\n" + call));
  EXPECT_THAT(std::string(Compile({Form::kJson, true, {{"at", ""}}, kAnswer}).status().message()),
              HasSubstr("are required, and have an answer"));
  EXPECT_THAT(
      std::string(Compile({Form::kJson, false, {{"at", ""}}, R"({"not": {}})"}).status().message()),
      HasSubstr("answer: "));
}

TEST(ToolCallGrammarTest, MayFollowAThought) {
  auto grammar = CompileConstraint({OutputConstraint::Kind::kToolCalls,
                                    TextOf({Form::kMarked, true, {{"at", ""}}}),
                                    OutputConstraint::Thought::kBegun});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  EXPECT_TRUE(Matches(*grammar,
                      "I <tool_call> it.</think>\n\n<tool_call>\n"
                      "{\"name\": \"at\", \"arguments\": {}}\n</tool_call>"));
}

// What holds a thought is not free, or else it could hold anything behind it.
TEST(ToolCallGrammarTest, AThoughtThatMayComeIsNoFreeText) {
  for (const Form form : {Form::kJson, Form::kList}) {
    const auto grammar = CompileConstraint({OutputConstraint::Kind::kToolCalls,
                                            TextOf({form, false, {{"add", kAddSchema}}}),
                                            OutputConstraint::Thought::kAllowed});
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    const std::string json = form == Form::kJson ? R"({"name": "add", "parameters": {"a": )"
                                                 : R"([{"name": "add", "arguments": {"a": )";
    const std::string end = form == Form::kJson ? "}}" : "}}]";
    for (const char* thought : {"", "<think>x</think>", "<think>\n</think>\n\n"}) {
      EXPECT_TRUE(Matches(*grammar, absl::StrCat(thought, json, "1", end))) << thought;
      EXPECT_FALSE(IsPrefix(*grammar, absl::StrCat(thought, json, "\""))) << thought;
      EXPECT_TRUE(Matches(*grammar, absl::StrCat(thought, "Hi <think>"))) << thought;
    }
    EXPECT_TRUE(Matches(*grammar, "<thing>"));
    EXPECT_FALSE(Matches(*grammar, "<think>x"));
  }
}

TEST(ToolCallGrammarTest, TextsComeBack) {
  const ToolCalls calls{Form::kList, true, {{"add", "{\n \"x\": 1}"}, {"1 2\n", ""}, {"", "é"}}};
  const auto back = ParseToolCalls(TextOf(calls));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, calls);
  const std::string text = TextOf(calls);
  ToolCalls answered = calls;
  answered.required = false;
  answered.answer = "{\n}";
  EXPECT_EQ(*ParseToolCalls(TextOf(answered)), answered);
  const std::string with_answer = TextOf(answered);
  for (size_t size = 0; size < with_answer.size(); ++size) {
    if (size == text.size()) continue;
    EXPECT_FALSE(ParseToolCalls(with_answer.substr(0, size)).ok()) << size;
  }
  for (const char* other :
       {"3 1 0\n", "0 2 0\n", "-1 0 0\n", "0 0 0\nx", "0 0 1\n9999999999999 1\na",
        "0 0 99999999999999999999\n", "0 0 1\n0 0\n\n"}) {
    EXPECT_FALSE(ParseToolCalls(other).ok()) << other;
  }
}

// Schemas that refer to many others many times: together they may take as much as one.
TEST(ToolCallGrammarTest, SchemasShareTheWorkThatTheyMayTake) {
  std::string schema = R"({"type": "object", "properties": {"x": {"oneOf": [{"$ref": "#/a"},
      {"type": "null"}]}}, "e": {"type": "string"})";
  for (char name = 'a'; name < 'e'; ++name) {
    absl::StrAppend(&schema, ", \"", std::string(1, name), "\": {\"anyOf\": [");
    for (int i = 0; i < 14; ++i) {
      absl::StrAppend(&schema, i > 0 ? "," : "", "{\"$ref\": \"#/", std::string(1, name + 1),
                      "\"}");
    }
    schema += "]}";
  }
  schema += "}";
  ToolCalls calls{Form::kJson, true, {{"f", schema}}};
  EXPECT_TRUE(Compile(calls).ok()) << Compile(calls).status();
  calls.functions.resize(40, calls.functions[0]);
  EXPECT_FALSE(Compile(calls).ok());
}

TEST(ToolCallGrammarTest, ManyFunctionsOfUsualSchemasFit) {
  constexpr char kUsual[] =
      R"({"type": "object", "required": ["city", "days", "lat", "lon", "unit"],
      "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "lat": {"type": "number"},
      "lon": {"type": "number"}, "at": {"type": "string", "format": "date-time"},
      "unit": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, "additionalProperties": false})";
  ToolCalls calls{Form::kJson, false, {}};
  for (int i = 0; i < 128; ++i)
    calls.functions.push_back({absl::StrCat("get_weather_", i), kUsual});
  EXPECT_TRUE(Compile(calls).ok()) << Compile(calls).status();
}

TEST(ToolCallGrammarTest, SaysWhatIsWrong) {
  const auto error = [](const ToolCalls& calls) {
    return std::string(Compile(calls).status().message());
  };
  EXPECT_THAT(error({Form::kJson, true, {}}), HasSubstr("are of 0 functions, must be 1 to 128"));
  EXPECT_THAT(error({Form::kJson, true, {{"f", ""}, {"", ""}}}),
              HasSubstr("function 1 has no name"));
  EXPECT_THAT(error({Form::kJson, false, {{"f", R"({"properties": {"age": {"not": {}}}})"}}}),
              HasSubstr("function \"f\": \"#/properties/age\""));
  EXPECT_THAT(error({Form::kJson, true, {{"f", "{"}}}), HasSubstr("function \"f\": "));
  EXPECT_THAT(error({Form::kJson, false, {{"f", "{"}}}), HasSubstr("not strict takes any"));
  EXPECT_THAT(error({Form::kJson, true, std::vector<ToolCalls::Function>(129, {"f", ""})}),
              HasSubstr("are of 129 functions"));
}

TEST(ToolCallGrammarTest, ManyFunctionsWithLongNamesFit) {
  for (const Form form : {Form::kJson, Form::kList, Form::kMarked}) {
    ToolCalls calls{form, false, {}};
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
