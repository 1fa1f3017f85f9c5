#include "model/json/strict_json.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(StrictJson, ParsesNestedValues) {
  const auto document = ParseStrictJson(R"( {"a":[1,-2,3.5,"x",null,true,{"b":{}}]} )");
  ASSERT_TRUE(document.ok()) << document.status();
  EXPECT_EQ(document->dump(), R"({"a":[1,-2,3.5,"x",null,true,{"b":{}}]})");
}

struct JsonRefusal {
  const char* name;
  std::string text;
  const char* message;
};

class StrictJsonRefuses : public ::testing::TestWithParam<JsonRefusal> {};

TEST_P(StrictJsonRefuses, WithItsReason) {
  const auto document = ParseStrictJson(GetParam().text, 3);
  ASSERT_FALSE(document.ok());
  EXPECT_EQ(document.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(document.status().message()), HasSubstr(GetParam().message));
  EXPECT_EQ(document.status().message().find('\n'), absl::string_view::npos);
}

INSTANTIATE_TEST_SUITE_P(
    All, StrictJsonRefuses,
    ::testing::Values(
        JsonRefusal{"DuplicateName", R"({"a":1,"a":2})", "\"a\" occurs twice"},
        JsonRefusal{"NestedDuplicate", R"({"b":{"a":1,"a":1}})", "\"a\" occurs twice"},
        JsonRefusal{"EscapedDuplicate", R"({"a":1,"\u0061":2})", "\"a\" occurs twice"},
        JsonRefusal{"Depth", "[[[[1]]]]", "deeper than 3"},
        JsonRefusal{"TrailingText", "{} x", "not valid JSON at byte"},
        JsonRefusal{"NulByte", std::string("{}\0{}", 5), "a NUL byte"},
        JsonRefusal{"ByteOrderMark", "\xef\xbb\xbf{}", "byte order mark"},
        JsonRefusal{"InvalidUtf8", "{\"\xff\":1}", "not valid JSON at byte"},
        JsonRefusal{"NotANumber", "{\"a\":NaN}", "not valid JSON at byte"},
        JsonRefusal{"Overflow", "{\"a\":1e999}", "not valid JSON at byte"},
        JsonRefusal{"LeadingZero", "{\"a\":01}", "not valid JSON at byte"},
        JsonRefusal{"TrailingComma", "{\"a\":1,}", "not valid JSON at byte"},
        JsonRefusal{"Comment", "{/*c*/}", "not valid JSON at byte"},
        JsonRefusal{"RawNewline", "{\"a\nb\":1}", "not valid JSON at byte"},
        JsonRefusal{"Empty", "", "not valid JSON at byte"}),
    [](const auto& info) { return info.param.name; });

TEST(StrictJson, HostileNestingStopsAtTheLimit) {
  const auto document = ParseStrictJson(std::string(1'000'000, '['));
  EXPECT_THAT(std::string(document.status().message()), HasSubstr("deeper than 16"));
}

TEST(StrictJson, WhatStandsForAFileInAShallowCloneIsNamed) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n";
  EXPECT_EQ(ParseStrictJson(pointer).status(), absl::InvalidArgumentError(kLfsPointer));
  EXPECT_FALSE(IsLfsPointer("version"));
}

TEST(StrictJson, SyntaxErrorsAreReadable) {
  EXPECT_EQ(ParseStrictJson("{]").status().message().find('\\'), absl::string_view::npos);
}

TEST(StrictJson, QuotedTextIsOneShortLine) {
  EXPECT_EQ(Quoted("a\n\"b\""), R"("a\n\"b\"")");
  EXPECT_LE(Quoted(std::string(100'000, 'x')).size(), 130u);
  EXPECT_LE(QuotedJson(nlohmann::json(std::string(100'000, 'x'))).size(), 130u);
}

TEST(OrderedJsonTest, KeepsTheOrderOfNamesAndIsAsStrict) {
  EXPECT_EQ(ParseStrictOrderedJson(R"({"z": [1, {"b": null, "a": 2.5}], "a": "x"})")->dump(),
            R"({"z":[1,{"b":null,"a":2.5}],"a":"x"})");
  for (const char* wrong : {R"({"a": 1, "a": 2})", "{", "[[[[1]]]]", "\xef\xbb\xbf{}"}) {
    EXPECT_FALSE(ParseStrictOrderedJson(wrong, /*max_depth=*/3).ok()) << wrong;
  }
  std::string names = "{\"0\": 0";
  for (size_t i = 1; i < kMaxOrderedNames; ++i) names += ", \"" + std::to_string(i) + "\": 0";
  EXPECT_TRUE(ParseStrictOrderedJson(names + "}").ok());
  EXPECT_FALSE(ParseStrictOrderedJson(names + ", \"more\": 0}").ok());
}

TEST(OrderedJsonTest, NamesOccurOnceInEachObject) {
  EXPECT_EQ(ParseStrictOrderedJson(R"({"b": {"b": 1}, "a": [{"b": 2}, {"b": 3}]})")->dump(),
            R"({"b":{"b":1},"a":[{"b":2},{"b":3}]})");
  EXPECT_FALSE(ParseStrictOrderedJson(R"({"b": {"c": 1}, "a": 2, "b": 3})").ok());
  EXPECT_FALSE(ParseStrictOrderedJson(R"({"a": {"c": 1, "b": 2, "c": {}}})").ok());
}

TEST(OrderedJsonTest, OneFieldIsThatOfTheOutermostObject) {
  const char* text = R"({"x": {"f": 1}, "f": {"z": [{"f": 2}], "a": 3}, "y": [{"f": 4}]})";
  EXPECT_EQ(ParseStrictOrderedField(text, "f")->dump(), R"({"z":[{"f":2}],"a":3})");
  EXPECT_EQ(ParseStrictOrderedField(text, "y")->dump(), R"([{"f":4}])");
  EXPECT_EQ(*ParseStrictOrderedField(R"({"f": "s", "g": 1})", "f"), "s");
  EXPECT_TRUE(ParseStrictOrderedField(text, "none")->is_null());
  EXPECT_TRUE(ParseStrictOrderedField(R"({"x": {"f": 1}})", "f")->is_null());
  EXPECT_TRUE(ParseStrictOrderedField(R"([{"f": 1}])", "f")->is_null());
  EXPECT_FALSE(ParseStrictOrderedField(R"({"f": [[[1]]]})", "f", /*max_depth=*/2).ok());
  EXPECT_TRUE(ParseStrictOrderedField(R"({"g": [[[1]]], "f": [1]})", "f", /*max_depth=*/2).ok());
  EXPECT_FALSE(ParseStrictOrderedField(R"({"f": 1, "g": )", "f").ok());
}

}  // namespace
}  // namespace lockstep
