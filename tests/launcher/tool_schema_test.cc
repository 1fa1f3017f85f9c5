#include "launcher/gateway/tool_schema.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/gateway/openai_request.h"
#include "launcher/gateway/tool_calls.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

// Tools of these functions.
Json Tools(const std::string& functions) {
  Json tools = Json::array();
  for (const Json& function : Json::parse(absl::StrCat("[", functions, "]"))) {
    tools.push_back({{"type", "function"}, {"function", function}});
  }
  return tools;
}

// Of the only tool, which has these parameters.
Json Parameters(const std::string& parameters) {
  const auto schema =
      ToolCallSchema(Tools(absl::StrCat(R"({"name": "f", "parameters": )", parameters, "}")), "");
  EXPECT_TRUE(schema.ok()) << schema.status();
  return schema.ok() ? schema->at("anyOf").at(0).at("properties").at("parameters") : Json();
}

constexpr char kTwo[] = R"({"name": "add", "strict": true, "parameters":
    {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}}, {"name": "now"})";
constexpr char kCallOfNow[] =
    R"({"type":"object","properties":{"name":{"const":"now"},"parameters":)"
    R"({"type":"object","properties":{},"additionalProperties":false}},)"
    R"("required":["name","parameters"],"additionalProperties":false})";

TEST(ToolSchemaTest, ACallIsOfOneOfTheFunctions) {
  EXPECT_EQ(
      ToolCallSchema(Tools(kTwo), "")->dump(),
      absl::StrCat(
          R"({"anyOf":[{"type":"object","properties":{"name":{"const":"add"},"parameters":)",
          R"({"type":"object","properties":{"b":{"type":"integer"},"a":{}}}},)",
          R"("required":["name","parameters"],"additionalProperties":false},)", kCallOfNow, "]}"));
}

TEST(ToolSchemaTest, OrOfTheOneThatIsNamed) {
  EXPECT_EQ(ToolCallSchema(Tools(kTwo), "now")->dump(),
            absl::StrCat(R"({"anyOf":[)", kCallOfNow, "]}"));
}

TEST(ToolSchemaTest, LocalReferencesFollowTheirSchema) {
  const auto schema = ToolCallSchema(Tools(R"({"name": "now"}, {"name": "f", "parameters": {
      "type": "object",
      "properties": {"x": {"$ref": "#/$defs/X"}, "self": {"$ref": "#"}},
      "$defs": {"X": {"anyOf": [{"$ref": "#/$defs/Y"}, {"items": {"$ref": "#/$defs/X"}}]},
                "Y": {"type": "null"}}}})"),
                                     "");
  ASSERT_TRUE(schema.ok()) << schema.status();
  const Json& f = (*schema)["anyOf"][1]["properties"]["parameters"];
  const std::string place = "#/anyOf/1/properties/parameters";
  EXPECT_EQ(f["properties"]["x"]["$ref"], place + "/$defs/X");
  EXPECT_EQ(f["properties"]["self"]["$ref"], place);
  EXPECT_EQ(f["$defs"]["X"]["anyOf"][0]["$ref"], place + "/$defs/Y");
  EXPECT_EQ(f["$defs"]["X"]["anyOf"][1]["items"]["$ref"], place + "/$defs/X");
  for (const char* pointer : {"/$defs/X", "/$defs/Y", ""}) {
    EXPECT_TRUE(schema->contains(Json::json_pointer(place.substr(1) + pointer))) << pointer;
  }
  // The one that is named is the only one.
  const auto named = ToolCallSchema(Tools(R"({"name": "now"}, {"name": "f", "parameters": {
      "$ref": "#/definitions/A", "definitions": {"A": {"type": "object"}}}})"),
                                    "f");
  EXPECT_EQ((*named)["anyOf"][0]["properties"]["parameters"]["$ref"],
            "#/anyOf/0/properties/parameters/definitions/A");
}

TEST(ToolSchemaTest, WhatOnlyLooksLikeALocalReferenceStays) {
  EXPECT_EQ(Parameters(R"({"type": "object", "properties": {
                "$ref": {"type": "string"}, "const": {"$ref": "#/properties/a"},
                "a": {"const": {"$ref": "#"}}, "b": {"enum": [{"$ref": "#/c"}]},
                "c": {"default": {"$ref": "#"}}, "d": {"$ref": "#name"},
                "e": {"$ref": "https://example.com/schema#/a"}}})")["properties"]
                .dump(),
            R"({"$ref":{"type":"string"},)"
            R"("const":{"$ref":"#/anyOf/0/properties/parameters/properties/a"},)"
            R"("a":{"const":{"$ref":"#"}},"b":{"enum":[{"$ref":"#/c"}]},)"
            R"("c":{"default":{"$ref":"#"}},"d":{"$ref":"#name"},)"
            R"("e":{"$ref":"https://example.com/schema#/a"}})");
}

TEST(ToolSchemaTest, ArgumentsAreAnObject) {
  EXPECT_EQ(Parameters("{}").dump(), R"({"type":"object"})");
  EXPECT_EQ(Parameters(R"({"properties": {"a": {}}})").dump(),
            R"({"properties":{"a":{}},"type":"object"})");
  EXPECT_EQ(Parameters(R"({"anyOf": [{"type": "object"}]})").dump(),
            R"({"anyOf":[{"type":"object"}]})");
  const auto list = ToolCallSchema(
      Tools(R"({"name": "now"}, {"name": "f", "parameters": {"type": "array"}})"), "");
  EXPECT_EQ(list.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(list.status().message()),
              HasSubstr("tools[1].function.parameters.type must be \"object\""));
}

TEST(ToolSchemaTest, WhatSaysThatASchemaIsADocumentIsLeftOut) {
  EXPECT_EQ(Parameters(R"({"$schema": "http://json-schema.org/draft-07/schema#",
                           "$id": "https://example.com/f", "type": "object"})")
                .dump(),
            R"({"type":"object"})");
}

TEST(ToolSchemaTest, WhatItDescribesIsReadAsACall) {
  const ToolOutput output =
      SplitToolCalls(R"({"name": "add", "parameters": {"b": 2}})", {"add", "now"});
  ASSERT_EQ(output.calls.size(), 1u);
  EXPECT_EQ(output.calls[0].arguments, R"({"b":2})");
}

TEST(ToolSchemaTest, CallsAreAsModelsWereTaught) {
  const Json tools = Tools(R"({"name": "f", "parameters": {"type": "object",
      "properties": {"x": {"$ref": "#/$defs/X"}}, "$defs": {"X": {"type": "null"}}}})");
  v1::OutputConstraint constraint;
  ASSERT_TRUE(ConstrainToCall(tools, "", ToolCallForm::kMarked, constraint).ok());
  EXPECT_EQ(constraint.before(), "<tool_call>\n");
  EXPECT_EQ(constraint.after(), "\n</tool_call>");
  EXPECT_THAT(constraint.json_schema(), HasSubstr(R"("#/anyOf/0/properties/arguments/$defs/X")"));
  constraint.Clear();
  ASSERT_TRUE(ConstrainToCall(tools, "", ToolCallForm::kList, constraint).ok());
  EXPECT_EQ(constraint.before(), "");
  const Json list = Json::parse(constraint.json_schema());
  EXPECT_EQ(list["type"], "array");
  EXPECT_EQ(list["minItems"], 1);
  EXPECT_EQ(list["maxItems"], 1);
  EXPECT_THAT(list.dump(), HasSubstr(R"("#/items/anyOf/0/properties/arguments/$defs/X")"));
  ASSERT_TRUE(ConstrainToCall(tools, "", ToolCallForm::kJson, constraint).ok());
  EXPECT_EQ(constraint.json_schema(), ToolCallSchema(tools, "")->dump());
}

TEST(ToolCallsTest, TheTemplateTellsTheForm) {
  EXPECT_EQ(ToolCallFormOf("{{ '<tool_call>' }} [TOOL_CALLS]"), ToolCallForm::kMarked);
  EXPECT_EQ(ToolCallFormOf("{{ '[TOOL_CALLS] [' }}"), ToolCallForm::kList);
  EXPECT_EQ(ToolCallFormOf("{{ \"parameters\" }}"), ToolCallForm::kJson);
}

// "tool_choice" of a chat whose tools are kTwo.
absl::StatusOr<OpenAiRequest> Choosing(const std::string& choice, const std::string& more = "") {
  return ParseChatRequest(absl::StrCat(
      R"({"messages": [{"role": "user", "content": "Hi"}], "tool_choice": )", choice, more, "}"));
}
const std::string kWithTools = absl::StrCat(R"(, "tools": )", Tools(kTwo).dump());

TEST(ToolChoiceTest, CallsThatMustBeMadeAreAConstraint) {
  for (const char* parallel : {"", R"(, "parallel_tool_calls": true)"}) {
    const auto required = Choosing(R"("required")", kWithTools + parallel);
    ASSERT_TRUE(required.ok()) << required.status();
    EXPECT_EQ(required->options.constraint().json_schema(),
              ToolCallSchema(Tools(kTwo), "")->dump());
    EXPECT_EQ(required->tool_names.size(), 2u);
    EXPECT_EQ(required->chat["tools"].size(), 2u);  // the template shows all
  }
  const auto named = Choosing(R"({"type": "function", "function": {"name": "now"}})", kWithTools);
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(named->options.constraint().json_schema(), ToolCallSchema(Tools(kTwo), "now")->dump());
}

TEST(ToolChoiceTest, CallsThatMayBeMadeAreNot) {
  for (const char* choice : {R"("auto")", R"("none")", "null"}) {
    EXPECT_FALSE(Choosing(choice, kWithTools)->options.has_constraint()) << choice;
    EXPECT_TRUE(Choosing(choice).ok()) << choice;
  }
  const auto format = Choosing(R"("auto")", kWithTools + R"(, "guided_regex": "a")");
  EXPECT_EQ(format->options.constraint().regex(), "a");
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
      {R"({"type": "allowed_tools"})", kWithTools, "tool_choice.type must be \"function\""},
      {R"("required")", kWithTools + R"(, "response_format": {"type": "json_object"})",
       "tool_choice is a second constraint"},
      {R"("required")",
       R"(, "tools": [{"type": "function", "function": {"name": "f", "parameters":
          {"title": ")" +
           std::string(65536, 'a') + R"("}}}])",
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
