#include "launcher/gateway/tools.h"

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/gateway/tool_calls.h"
#include "model/grammar/constraint.h"
#include "model/grammar/tool_calls.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// Tools of these functions.
Json Tools(const std::string& functions) {
  Json tools = Json::array();
  for (const Json& function : Json::parse(absl::StrCat("[", functions, "]"))) {
    tools.push_back({{"type", "function"}, {"function", function}});
  }
  return tools;
}

constexpr char kAdd[] = R"({"name": "add", "parameters":
    {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}})";
constexpr char kStrictAdd[] = R"({"name": "add", "strict": true, "parameters":
    {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}})";
constexpr char kAddParameters[] =
    R"({"type":"object","properties":{"b":{"type":"integer"},"a":{}}})";
constexpr char kNow[] = R"({"name": "now"})";

// "tool_choice" of a chat.
absl::StatusOr<OpenAiRequest> Choosing(const std::string& choice, const std::string& more = "") {
  return ParseChatRequest(absl::StrCat(
      R"({"messages": [{"role": "user", "content": "Hi"}], "tool_choice": )", choice, more, "}"));
}
std::string With(const std::string& functions) {
  return absl::StrCat(R"(, "tools": )", Tools(functions).dump());
}
const std::string kWithTools = With(absl::StrCat(kAdd, ",", kNow));

// Of the only function.
std::string Parameters(const std::string& parameters) {
  const auto request = Choosing(
      R"("required")", With(absl::StrCat(R"({"name": "f", "parameters": )", parameters, "}")));
  EXPECT_TRUE(request.ok()) << request.status();
  return request->options.constraint().tool_calls().functions(0).parameters();
}

TEST(ToolChoiceTest, CallsThatMustBeMadeAreAConstraint) {
  for (const char* parallel : {"", R"(, "parallel_tool_calls": true)"}) {
    const auto required = Choosing(R"("required")", kWithTools + parallel);
    ASSERT_TRUE(required.ok()) << required.status();
    const v1::ToolCalls& calls = required->options.constraint().tool_calls();
    EXPECT_TRUE(calls.required());
    ASSERT_EQ(calls.functions_size(), 2);
    EXPECT_EQ(calls.functions(0).name(), "add");
    EXPECT_EQ(calls.functions(0).parameters(), kAddParameters);
    EXPECT_EQ(calls.functions(1).name(), "now");
    EXPECT_EQ(calls.functions(1).parameters(), "");
    EXPECT_EQ(required->tool_names.size(), 2u);
    EXPECT_EQ(required->chat["tools"].size(), 2u);  // the template shows all
  }
  const auto named = Choosing(R"({"type": "function", "function": {"name": "now"}})", kWithTools);
  ASSERT_TRUE(named.ok()) << named.status();
  ASSERT_EQ(named->options.constraint().tool_calls().functions_size(), 1);
  EXPECT_EQ(named->options.constraint().tool_calls().functions(0).name(), "now");
}

std::string Allowing(const std::string& mode, const std::string& tools) {
  return absl::StrCat(R"({"type": "allowed_tools", "allowed_tools": {"mode": ")", mode,
                      R"(", "tools": [)", tools, "]}}");
}
constexpr char kNowAllowed[] = R"({"type": "function", "function": {"name": "now"}})";

// The template goes on showing all, so that a prompt's beginning stays what it was.
TEST(ToolChoiceTest, SomeToolsMayBeAllowed) {
  const auto may = Choosing(Allowing("auto", kNowAllowed), kWithTools);
  ASSERT_TRUE(may.ok()) << may.status();
  EXPECT_FALSE(may->options.has_constraint());
  EXPECT_THAT(may->tool_names, ElementsAre("now"));
  EXPECT_EQ(may->chat["tools"].size(), 2u);
  const auto not_strict =
      Choosing(Allowing("auto", kNowAllowed), With(absl::StrCat(kStrictAdd, ",", kNow)));
  EXPECT_FALSE(not_strict->options.has_constraint()) << "strict is one that is not allowed";
  const auto must = Choosing(Allowing("required", kNowAllowed), kWithTools);
  ASSERT_TRUE(must.ok()) << must.status();
  ASSERT_EQ(must->options.constraint().tool_calls().functions_size(), 1);
  EXPECT_EQ(must->options.constraint().tool_calls().functions(0).name(), "now");
}

TEST(ToolChoiceTest, AFormatIsOfAnswersAlone) {
  const std::string format = R"(, "response_format": {"type": "json_object"})";
  const auto must = Choosing(R"("required")", kWithTools + format);
  ASSERT_TRUE(must.ok()) << must.status();
  EXPECT_TRUE(must->options.constraint().has_tool_calls());
  EXPECT_EQ(must->constraint_field, "tools");
  const auto may = Choosing(R"("auto")", kWithTools + format);
  ASSERT_TRUE(may.ok()) << may.status();
  const v1::ToolCalls& calls = may->options.constraint().tool_calls();
  EXPECT_FALSE(calls.required());
  EXPECT_EQ(calls.answer(), R"({"type":"object"})");
  ASSERT_EQ(calls.functions_size(), 2);
  EXPECT_EQ(calls.functions(0).parameters(), R"({"type":"object"})") << "it is not strict";
  const auto none = Choosing(R"("none")", kWithTools + format);
  EXPECT_TRUE(none->options.constraint().has_json_schema());
  const auto own = Choosing(R"("auto")", kWithTools + R"(, "guided_json": {})");
  EXPECT_TRUE(own->options.constraint().has_json_schema()) << "not of what answers say alone";
}

TEST(ToolCallsTest, IdsAreShortAndNeverTheSame) {
  std::set<std::string> ids;
  for (const bool is_short : {false, true}) {
    for (size_t output = 0; output < 20; ++output) {
      for (size_t i = 0; i < 100; ++i) {
        const std::string id = ToolCallId("5f38020d6979805b403646599501115f", output, i, is_short);
        EXPECT_THAT(id, MatchesRegex(is_short ? "[0-9A-Za-z]{9}" : "call_[0-9A-Za-z]{24}"));
        EXPECT_TRUE(ids.insert(id).second) << id;
      }
    }
  }
  EXPECT_TRUE(WantsShortIds("{{ '[TOOL_CALLS]' }}"));
  EXPECT_FALSE(WantsShortIds("<tool_call>"));
}

TEST(ToolChoiceTest, CallsThatMayBeMadeAreNot) {
  for (const char* choice : {R"("auto")", R"("none")", "null"}) {
    EXPECT_FALSE(Choosing(choice, kWithTools)->options.has_constraint()) << choice;
    EXPECT_TRUE(Choosing(choice).ok()) << choice;
  }
  EXPECT_TRUE(Choosing("null", With(R"({"name": "f", "strict": null})")).ok());
}

TEST(ToolChoiceTest, StrictFunctionsAreCalledAsTheirSchemaSays) {
  const std::string tools = With(absl::StrCat(kStrictAdd, ",", kNow));
  const auto request = Choosing(R"("auto")", tools);
  ASSERT_TRUE(request.ok()) << request.status();
  const v1::ToolCalls& calls = request->options.constraint().tool_calls();
  EXPECT_FALSE(calls.required());
  ASSERT_EQ(calls.functions_size(), 2);
  EXPECT_EQ(calls.functions(0).parameters(), kAddParameters);
  EXPECT_EQ(calls.functions(1).parameters(), R"({"type":"object"})") << "it is not strict";
  EXPECT_FALSE(Choosing(R"("none")", tools)->options.has_constraint());
  const auto other = Choosing(R"("auto")", tools + R"(, "guided_regex": "a")");
  EXPECT_EQ(other->options.constraint().regex(), "a") << "the client's own constraint";
}

TEST(ToolChoiceTest, ArgumentsAreAnObject) {
  EXPECT_EQ(Parameters("{}"), R"({"type":"object"})");
  EXPECT_EQ(Parameters(R"({"properties": {"a": {}}})"),
            R"({"properties":{"a":{}},"type":"object"})");
  // Whatever else it may be: what is no object is no arguments.
  EXPECT_EQ(Parameters(R"({"anyOf": [{"type": "object"}, {"type": "null"}]})"),
            R"({"anyOf":[{"type":"object"},{"type":"null"}],"type":"object"})");
  EXPECT_EQ(Parameters(R"({"type": ["null", "object"]})"), R"({"type":"object"})");
  const auto list =
      Choosing(R"("required")",
               With(absl::StrCat(kNow, R"(, {"name": "f", "parameters": {"type": "array"}})")));
  EXPECT_EQ(list.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(list.status().message()),
              HasSubstr("tools[1].function.parameters.type must be \"object\""));
}

TEST(ToolChoiceTest, WhatSchemasSayToReadersIsLeftOut) {
  EXPECT_EQ(Parameters(R"({"title": "T", "description": "D", "type": "object", "properties": {
                "description": {"type": "string", "description": "D", "default": "x"},
                "title": {"const": {"title": "T"}}}, "$defs": {"default": {"examples": [1]}},
                "anyOf": [{"description": "D"}]})"),
            R"({"type":"object","properties":{"description":{"type":"string"},)"
            R"("title":{"const":{"title":"T"}}},"$defs":{"default":{}},"anyOf":[{}]})");
}

TEST(ToolChoiceTest, WhatNobodyAskedForStandsInTheWayOfNothing) {
  for (const char* other : {R"(, "min_tokens": 1)", R"(, "ignore_eos": true)"}) {
    const auto request = Choosing(R"("auto")", With(kStrictAdd) + other);
    ASSERT_TRUE(request.ok()) << request.status();
    EXPECT_FALSE(request->options.has_constraint()) << other;
  }
}

// References within a function's schema are its own.
TEST(ToolChoiceTest, SchemasOfFunctionsAreDocuments) {
  const std::string parameters =
      Parameters(R"({"$schema": "http://json-schema.org/draft-07/schema#",
      "$id": "https://example.com/f", "type": "object", "required": ["x"],
      "properties": {"x": {"$ref": "#/$defs/X"}}, "$defs": {"X": {"const": 7}}})");
  const grammar::ToolCalls calls{grammar::ToolCalls::Form::kJson, true, {{"f", parameters}}};
  const auto compiled =
      grammar::CompileConstraint({OutputConstraint::Kind::kToolCalls, grammar::TextOf(calls)});
  EXPECT_TRUE(compiled.ok()) << compiled.status();
}

TEST(ToolCallsTest, TheTemplateTellsTheForm) {
  EXPECT_EQ(ToolCallFormOf("{{ '<tool_call>' }} [TOOL_CALLS]"), v1::ToolCalls::FORM_MARKED);
  EXPECT_EQ(ToolCallFormOf("{{ '[TOOL_CALLS] [' }}"), v1::ToolCalls::FORM_LIST);
  EXPECT_EQ(ToolCallFormOf("{{ \"parameters\" }}"), v1::ToolCalls::FORM_JSON);
  EXPECT_EQ(ToolCallFormOf("<tool_call>\n<function=f>"), v1::ToolCalls::FORM_JSON);
  EXPECT_EQ(ToolCallFormOf("[TOOL_CALLS]f[ARGS]"), v1::ToolCalls::FORM_JSON);
}

TEST(ToolChoiceTest, WrongChoicesAreRefusedByName) {
  const struct {
    std::string choice, more, error;
  } kWrong[] = {
      {R"("any")", kWithTools, "tool_choice must be \"auto\", \"none\", \"required\""},
      {R"("required")", "", "tool_choice wants a call, but there are no tools"},
      {R"("required")", R"(, "tools": [])", "tool_choice wants a call, but there are no tools"},
      {R"({"type": "function", "function": {"name": "rm"}})", kWithTools, "names \"rm\", which"},
      {R"({"type": "function", "function": {}})", kWithTools, "function.name is missing"},
      {R"({"type": "function"})", kWithTools, "tool_choice.function is missing"},
      {R"({"type": "custom"})", kWithTools, "tool_choice.type must be \"function\""},
      {R"({"type": "allowed_tools"})", kWithTools, "tool_choice.allowed_tools is missing"},
      {Allowing("any", kNowAllowed), kWithTools, "tool_choice.allowed_tools.mode must be"},
      {Allowing("auto", ""), kWithTools, "tool_choice.allowed_tools.tools must be an array"},
      {Allowing("auto", "3"), kWithTools, "tool_choice.allowed_tools.tools[0] must be an object"},
      {Allowing("auto", R"({"type": "function", "function": {"name": "rm"}})"), kWithTools,
       "names \"rm\", which"},
      {R"("required")", kWithTools + R"(, "guided_regex": "a", "response_format":
          {"type": "text"})",
       "tool_choice is a second constraint"},
      {R"("required")",
       R"(, "tools": [{"type": "function", "function": {"name": "f", "parameters":
          {"enum": [")" +
           std::string(65536, 'a') + R"("]}}}])",
       "tool_choice makes a constraint of"},
  };
  for (const auto& wrong : kWrong) {
    const auto request = Choosing(wrong.choice, wrong.more);
    EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument) << wrong.choice;
    EXPECT_THAT(std::string(request.status().message()), HasSubstr(wrong.error)) << wrong.choice;
  }
}

}  // namespace
}  // namespace lockstep
