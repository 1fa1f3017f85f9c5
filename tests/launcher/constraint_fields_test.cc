#include "launcher/gateway/constraint_fields.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/gateway/openai_error.h"
#include "launcher/gateway/openai_request.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// What a completion with these fields asks for; chats are read by the same code.
absl::StatusOr<v1::OutputConstraint> Asked(const std::string& fields) {
  const auto request = ParseCompletionRequest(absl::StrCat(R"({"prompt": "p", )", fields, "}"));
  if (!request.ok()) return request.status();
  return request->options.constraint();
}

std::string Schema(const std::string& fields) {
  const auto asked = Asked(fields);
  EXPECT_TRUE(asked.ok()) << fields << ": " << asked.status();
  return asked.ok() ? asked->json_schema() : "";
}

std::string Error(const std::string& fields) {
  return std::string(Asked(fields).status().message());
}

constexpr char kSchema[] = R"({"type": "object", "properties": {"z": {}, "a": {"const": 1.50}}})";
constexpr char kSameSchema[] = R"({"type":"object","properties":{"z":{},"a":{"const":1.5}}})";

std::string NamedSchema(const std::string& schema) {
  return absl::StrCat(R"("response_format": {"type": "json_schema", "json_schema": {"name": "n",
      "description": "d", "strict": false, "schema": )",
                      schema, "}}");
}

TEST(ConstraintFieldsTest, SchemasKeepTheOrderOfTheirNames) {
  EXPECT_EQ(Schema(NamedSchema(kSchema)), kSameSchema);
  EXPECT_EQ(Schema(absl::StrCat(R"("guided_json": )", kSchema)), kSameSchema);
  EXPECT_EQ(Schema(absl::StrCat(R"("structured_outputs": {"json": )", kSchema, "}")), kSameSchema);
}

TEST(ConstraintFieldsTest, ASchemaInAStringIsTakenAsItIs) {
  EXPECT_EQ(Schema(R"("guided_json": "{\"z\": {} }")"), R"({"z": {} })");
  EXPECT_EQ(Schema(R"("structured_outputs": {"json": "{}"})"), "{}");
}

TEST(ConstraintFieldsTest, AnyObjectIsASchema) {
  EXPECT_EQ(Schema(R"("response_format": {"type": "json_object"})"), R"({"type":"object"})");
  EXPECT_EQ(Schema(R"("structured_outputs": {"json_object": true})"), R"({"type":"object"})");
}

TEST(ConstraintFieldsTest, PatternsAndChoicesReachTheServer) {
  EXPECT_EQ(Asked(R"("guided_regex": "a+\\d")")->regex(), "a+\\d");
  EXPECT_EQ(Asked(R"("structured_outputs": {"regex": "a|b"})")->regex(), "a|b");
  EXPECT_THAT(Asked(R"("guided_choice": ["yes", "no"])")->choices().texts(),
              ElementsAre("yes", "no"));
  EXPECT_THAT(Asked(R"("structured_outputs": {"choice": ["b", "a"]})")->choices().texts(),
              ElementsAre("b", "a"));
}

TEST(ConstraintFieldsTest, WhatTheServerSaysOfOneIsSaidOfItsField) {
  const auto said_of = [](const std::string& fields, const absl::Status& said) {
    const auto request = ParseCompletionRequest(absl::StrCat(R"({"prompt": "p", )", fields, "}"));
    EXPECT_TRUE(request.ok()) << request.status();
    const nlohmann::ordered_json error =
        OpenAiErrorJson(AboutConstraint(said, request->constraint_field))["error"];
    return std::pair(error["param"].dump(), error["message"].get<std::string>());
  };
  const absl::Status wrong = absl::InvalidArgumentError("constraint.regex: at byte 0: look-ahead");
  const std::string rest = ": at byte 0: look-ahead";
  for (const auto& [fields, name] : std::vector<std::pair<std::string, std::string>>{
           {R"("guided_regex": "b")", "guided_regex"},
           {R"("guided_json": {})", "guided_json"},
           {R"("guided_choice": ["a"])", "guided_choice"},
           {R"("structured_outputs": {"regex": "a"})", "structured_outputs"},
           {R"("guided_regex": null, "response_format": {"type": "json_object"})",
            "response_format"},
           {R"("response_format": {"type": "text"})", "tools"}}) {
    EXPECT_THAT(said_of(fields, wrong), Pair(absl::StrCat("\"", name, "\""), name + rest));
  }
  EXPECT_THAT(said_of(R"("guided_json": {})", absl::InvalidArgumentError("constraint: no room")),
              Pair("\"guided_json\"", "guided_json: no room"));
  EXPECT_THAT(said_of(R"("guided_json": {})", absl::InvalidArgumentError("constraints are many")),
              Pair("null", "constraints are many"));
  EXPECT_THAT(said_of(R"("guided_json": {})", absl::UnavailableError("constraint: later")),
              Pair("null", "constraint: later"));
}

TEST(ConstraintFieldsTest, WhoAsksForNothingGetsNoConstraint) {
  for (const char* fields :
       {R"("response_format": {"type": "text"})", R"("response_format": null)",
        R"("guided_json": null, "guided_regex": null, "guided_grammar": null)",
        R"("structured_outputs": null, "structural_tag": null)", R"("structured_outputs": {})"}) {
    const auto request = ParseCompletionRequest(absl::StrCat(R"({"prompt": "p", )", fields, "}"));
    ASSERT_TRUE(request.ok()) << fields << ": " << request.status();
    EXPECT_FALSE(request->options.has_constraint()) << fields;
  }
}

TEST(ConstraintFieldsTest, WrongOnesAreRefusedByName) {
  const struct {
    const char* fields;
    const char* error;
  } kWrong[] = {
      {R"("response_format": "json")", "response_format must be an object"},
      {R"("response_format": {})", "response_format.type must be text, json_object or json_schema"},
      {R"("response_format": {"type": "structural_tag"})", "not \"structural_tag\""},
      {R"("response_format": {"type": "json_schema"})", "response_format.json_schema is missing"},
      {R"("response_format": {"type": "json_object", "json_schema": {}})",
       "response_format.json_schema is for"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "n"}})",
       "response_format.json_schema.schema must be an object"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"schema": "{}"}})",
       "response_format.json_schema.schema must be an object"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"schema": {}, "x": 1}})",
       "unknown field \"response_format.json_schema.x\""},
      {R"("guided_json": [])", "guided_json must be an object, or a string of JSON"},
      {R"("guided_regex": 1)", "guided_regex must be a string"},
      {R"("guided_choice": [])", "guided_choice must be an array of strings, at least one"},
      {R"("guided_choice": ["a", 1])", "guided_choice must be an array of strings"},
      {R"("guided_choice": "a")", "guided_choice must be an array of strings"},
      {R"("guided_grammar": "root ::= 'a'")", "guided_grammar cannot be given"},
      {R"("structural_tag": "{}")", "structural_tag cannot be given"},
      {R"("structured_outputs": 1)", "structured_outputs must be an object"},
      {R"("structured_outputs": {"json_object": false})", "structured_outputs must have json"},
      {R"("structured_outputs": {"grammar": "g"})", "structured_outputs.grammar cannot be given"},
      {R"("structured_outputs": {"structural_tag": "t"})",
       "structured_outputs.structural_tag cannot be given"},
      {R"("structured_outputs": {"json": 1})", "structured_outputs.json must be an object"},
      {R"("structured_outputs": {"jsn": {}})", "unknown field \"structured_outputs.jsn\""},
  };
  for (const auto& wrong : kWrong) {
    EXPECT_EQ(Asked(wrong.fields).status().code(), absl::StatusCode::kInvalidArgument)
        << wrong.fields;
    EXPECT_THAT(Error(wrong.fields), HasSubstr(wrong.error)) << wrong.fields;
  }
}

TEST(ConstraintFieldsTest, AnyTwoAreOneTooMany) {
  const std::string all[] = {NamedSchema("{}"), R"("guided_json": {})", R"("guided_regex": "a")",
                             R"("guided_choice": ["a"])", R"("structured_outputs": {"json": {}})"};
  for (size_t i = 0; i < std::size(all); ++i) {
    for (size_t j = 0; j < std::size(all); ++j) {
      if (i == j) continue;
      EXPECT_THAT(Error(absl::StrCat(all[i], ", ", all[j])), HasSubstr("is a second constraint"));
    }
  }
  EXPECT_THAT(Error(R"("structured_outputs": {"regex": "a", "choice": ["a"]})"),
              HasSubstr("structured_outputs.choice is a second constraint"));
  EXPECT_THAT(Error(R"("structured_outputs": {"json": {}, "json_object": true})"),
              HasSubstr("is a second constraint"));
}

TEST(ConstraintFieldsTest, TheyHave64KibibytesAtMost) {
  const std::string text(65536, 'a');
  EXPECT_TRUE(Asked(absl::StrCat(R"("guided_regex": ")", text, "\"")).ok());
  for (const char* field : {"guided_regex", "guided_json"}) {
    EXPECT_THAT(
        Error(absl::StrCat("\"", field, R"(": "a)", text, "\"")),
        HasSubstr(absl::StrCat(field, " makes a constraint of 65537 bytes: at most 65536")));
  }
  EXPECT_THAT(Error(absl::StrCat(R"("guided_choice": [")", text, "\"]")), HasSubstr("65540 bytes"));
  EXPECT_THAT(Error(NamedSchema(absl::StrCat(R"({"title": ")", text, "\"}"))),
              HasSubstr("response_format.json_schema.schema makes a constraint of 65548 bytes"));
}

TEST(ConstraintFieldsTest, SchemasOfTooManyNamesAreRefusedByName) {
  std::string names = R"("n": 0)";
  for (int i = 0; i < 1024; ++i) absl::StrAppend(&names, ",\"", i, "\":0");
  EXPECT_THAT(Error(absl::StrCat(R"("guided_json": {)", names, "}")),
              HasSubstr("guided_json is no schema: an object has more than 1024 names"));
}

}  // namespace
}  // namespace lockstep
