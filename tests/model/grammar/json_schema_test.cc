#include "model/grammar/json_schema.h"

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/grammar_texts.h"

namespace lockstep::grammar {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Texts = std::vector<std::string>;

absl::StatusOr<Grammar> Compile(const std::string& schema) {
  GrammarBuilder builder;
  const auto part = AddJsonSchema(schema, builder);
  return part.ok() ? builder.Build(*part) : part.status();
}

std::string ErrorOf(const std::string& schema) {
  const auto grammar = Compile(schema);
  return grammar.ok() ? "none" : std::string(grammar.status().message());
}

// The grammar of the schema has the first and none of the others.
void Expect(const std::string& schema, const Texts& has, const Texts& has_not) {
  const auto grammar = Compile(schema);
  ASSERT_TRUE(grammar.ok()) << schema << ": " << grammar.status();
  for (const std::string& text : has) {
    EXPECT_TRUE(Matches(*grammar, text)) << schema << " has not " << text;
  }
  for (const std::string& text : has_not) {
    EXPECT_FALSE(Matches(*grammar, text)) << schema << " has " << text;
  }
}

TEST(JsonSchemaTest, TypesAreWhatTheyAreInJson) {
  Expect(R"({"type":"null"})", {"null"}, {"", "nul", "Null", "0", "null ", " null"});
  Expect(R"({"type":"boolean"})", {"true", "false"}, {"1", "\"true\""});
  Expect(R"({"type":"integer"})", {"0", "-1", "999999999999999999", "-999999999999999999"},
         {"-0", "01", "1.0", "1e3", "+1", "1000000000000000000"});
  Expect(R"({"type":"number"})",
         {"0", "-0", "1.0", "-1.5e+10", "2E-07", "9.9e307", "0.00012345678901234567"},
         {".5", "1.", "1e", "1e400", "1.0e308", "10e307", "NaN", "00", "1e0001"});
  Expect(R"({"type":["string","null"]})", {"null", "\"a\""}, {"0", "[]"});
}

TEST(JsonSchemaTest, StringsHaveEveryEscapeButHalvesOfPairs) {
  Expect(R"({"type":"string"})",
         {R"("")", R"("a\"\\\/\b\f\n\r\t")", R"("\u0000\ud7FF\uE000\uffff")", R"("\uD83D\uDE00")",
          "\"\u00e9\u20ac\U0001F600\x7f\""},
         {"\"\n\"", R"("\x41")", R"("\u12")", R"("\ud83d")", R"("\ude00")", R"("\ud83da")",
          R"("\ud83d\ud83d")", "\"\xff\"", "\"\xed\xa0\x80\"", "\"a", "a"});
}

TEST(JsonSchemaTest, CharactersAreCounted) {
  Expect(R"({"type":"string","minLength":2,"maxLength":3})",
         {R"("ab")", R"("abc")", "\"\u20ac\U0001F600\"", R"("\n\u0041\ud83d\uDE00")"},
         {R"("a")", R"("abcd")", "\"\U0001F600\"", R"("\ud83d\ude00")"});
  Expect(R"({"minLength":1})", {R"("a")"}, {R"("")", "1"});  // others are valid, but not written
}

TEST(JsonSchemaTest, PatternsAreSearchedForInWhatTheStringSays) {
  Expect(R"({"pattern":"[0-9]"})", {R"("1")", R"("a1\"\u0041")", "\"\u20ac1\""}, {R"("a")", "1"});
  Expect(R"({"pattern":"^a\"\\\\\\n$"})", {R"("a\"\\\n")", R"("a\"\\\u000A")"}, {R"("a"\\n")"});
  Expect(R"({"pattern":"^[a-z]+(-[a-z]+)*$","minLength":3,"maxLength":4})",
         {R"("abc")", R"("a-bc")"}, {R"("ab")", R"("abcde")", R"("ab-")"});
  Expect(R"({"pattern":"^[^x]*$","maxLength":2})", {R"("\"\u0001")", "\"\U0001F600\""},
         {R"("x")", R"("abc")"});
  EXPECT_THAT(ErrorOf(R"({"items":{"pattern":"(?=a)b"}})"), StartsWith("\"#/items\": pattern: "));
}

TEST(JsonSchemaTest, SomeFormatsAreKept) {
  Expect(R"({"type":"string","format":"date"})", {R"("2024-02-29")", R"("2000-12-31")"},
         {R"("2023-02-29")", R"("1900-02-29")", R"("2024-04-31")", R"("0000-01-01")", R"("")"});
  Expect(R"({"format":"date-time"})",
         {R"("2024-02-29T23:59:59.5Z")", R"("0001-01-01T00:00:00-08:00")"},
         {R"("2024-02-29 23:59:59Z")", R"("2024-02-29T24:00:00Z")", R"("2024-02-29T23:59:59")"});
  Expect(R"({"format":"uuid"})", {R"("123e4567-e89b-12D3-a456-426614174000")"}, {R"("123e4567")"});
  Expect(R"({"format":"ipv4"})", {R"("255.0.10.1")"}, {R"("256.0.0.1")", R"("01.1.1.1")"});
  Expect(R"({"format":"email"})", {R"("a.b+c@mail.example.org")"}, {R"("a@b")", R"("@b.org")"});
  Expect(R"({"type":"string","format":"uri"})", {R"("anything")"}, {});
  Expect(R"({"type":"integer","format":"int32"})", {"7"}, {R"("7")"});
}

TEST(JsonSchemaTest, NumbersAreThoseInTheRange) {
  const Texts bounds = {"-10.5", "-1", "-0.125", "0", "0.5", "1", "7", "10", "29.25", "100"};
  const auto value = [](const std::string& text) {
    double number = 0;
    EXPECT_TRUE(absl::SimpleAtod(text, &number));
    return number;
  };
  Texts texts;
  for (const int whole : {0, 1, 2, 6, 7, 8, 9, 10, 11, 28, 29, 30, 99, 100, 101}) {
    for (const char* fraction :
         {"", ".0", ".12", ".125", ".126", ".25", ".26", ".5", ".50", ".9"}) {
      const std::string text = absl::StrCat(whole, fraction);
      texts.push_back(text);
      if (value(text) > 0) texts.push_back("-" + text);
    }
  }
  for (const std::string& low : bounds) {
    for (const std::string& high : bounds) {
      const std::string range =
          absl::StrCat(R"({"exclusiveMinimum":)", low, R"(,"maximum":)", high, "}");
      const auto numbers = Compile(range);
      EXPECT_EQ(numbers.ok(), value(low) < value(high)) << range;
      for (const std::string& text : texts) {
        const bool is_in = value(low) < value(text) && value(text) <= value(high);
        if (!numbers.ok()) break;
        EXPECT_EQ(Matches(*numbers, text), is_in) << range << text;
      }
    }
  }
}

TEST(JsonSchemaTest, BoundsAreReadAsEveryDraftWritesThem) {
  Expect(R"({"type":"integer","minimum":0.5,"maximum":12})", {"1", "9", "10", "12"},
         {"0", "13", "-1", "100"});
  Expect(R"({"type":"integer","minimum":-3,"exclusiveMinimum":true})", {"-2", "-1", "0", "77"},
         {"-3", "-0"});
  Expect(R"({"type":"integer","maximum":18446744073709551615})", {"999999999999999999"}, {});
  Expect(R"({"type":"number","multipleOf":1})", {"3"}, {"3.0"});
  // Of two numbers of 15 digits, no two read as the same double.
  Expect(R"({"type":"number","exclusiveMaximum":1})", {"0.99999999999999"},
         {"0.9999999999999999999"});
  EXPECT_THAT(ErrorOf(R"({"type":"integer","minimum":3,"maximum":2})"), HasSubstr("no text"));
  EXPECT_THAT(ErrorOf(R"({"type":"integer","minimum":1e18})"), HasSubstr("no text"));
}

TEST(JsonSchemaTest, WhiteSpaceIsWhereWritersPutItAndBounded) {
  const std::string schema = R"({"properties":{"a":{"items":{"type":"null"}}},"required":["a"]})";
  const std::string deep(32, ' ');
  Expect(schema,
         {R"({"a":[null,null]})", R"({"a": [null, null]})", "{ \"a\": [\n\t null,\n\tnull\n] }",
          "{\n" + deep + "\"a\":[]}", R"({"a":[ ]})"},
         {R"({"a":  []})", R"({"a" :[]})", R"({"a":[null ,null]})", "{\"a\":\n[]}",
          R"({"a":[] }  )", R"( {"a":[]})", "{\n\n\"a\":[]}", "{\t\"a\":[]}",
          "{\n" + deep + " \"a\":[]}", "{\"a\":[]}\n"});
}

TEST(JsonSchemaTest, PropertiesAreInOrderAndSomeMayBeLeftOut) {
  Expect(R"({"type":"object","properties":{"a":{"const":1},"b":{"const":2},"c":{"const":3}},
             "required":["b"]})",
         {R"({"b":2})", R"({"a":1,"b":2})", R"({"b":2,"c":3})", R"({"a":1,"b":2,"c":3})"},
         {"{}", R"({"a":1})", R"({"b":2,"a":1})", R"({"a":1,"c":3})", R"({"b":2,})", R"({,"b":2})",
          R"({"b":2,"d":4})", R"({"b":2,"b":2})"});
  Expect(R"({"properties":{"a":{},"b":{}}})", {"{}", R"({"a":[{}]})", R"({"b":1})"}, {"1"});
  Expect(R"({"properties":{}})", {"{}", "{ }"}, {R"({"a":1})"});
  Expect(R"({"properties":{"é\"\n":{}}})", {R"({"é\"\n":1})"}, {});
}

TEST(JsonSchemaTest, ManyPropertiesTakeFewStates) {
  std::string properties = R"("p0":{})";
  for (int i = 1; i < 1000; ++i) absl::StrAppend(&properties, ",\"p", i, "\":{}");
  const auto grammar = Compile(absl::StrCat("{\"properties\":{", properties, "}}"));
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  EXPECT_LT(grammar->num_states(), 25'000);
  EXPECT_TRUE(Matches(*grammar, R"({"p0":1,"p17":2,"p998":3})"));
  EXPECT_FALSE(Matches(*grammar, R"({"p17":1,"p16":2})"));
}

TEST(JsonSchemaTest, AdditionalPropertiesHaveOtherNames) {
  Expect(R"({"properties":{"a":{"const":1},"abc":{"const":2}},"additionalProperties":{"const":0}})",
         {"{}", R"({"a":1,"b":0})", R"({"ab":0,"abcd":0})", R"({"":0})", R"({"b\u0041":0})",
          R"({"\n\"é":0})"},
         {R"({"a":0})", R"({"\u0061":0})", R"({"abc":0})", R"({"b":0,"a":1})", R"({"b":1})"});
  Expect(R"({"type":"object"})", {"{}", R"({"a":1,"a":{}})"}, {"[]"});
  Expect(R"({"additionalProperties":{"type":"null"}})", {R"({"a":null})"}, {R"({"a":1})"});
  Expect(R"({"required":["a"]})", {R"({"a":1})", R"({"a":1,"b":2})"}, {"{}", R"({"b":2,"a":1})"});
  Expect(R"({"properties":{"a":{}},"required":["b"],"additionalProperties":{"const":0}})",
         {R"({"b":0})", R"({"a":1,"b":0,"c":0})"}, {R"({"a":1})", R"({"b":1})"});
  Expect(R"({"minProperties":1,"maxProperties":2})", {R"({"a":1})", R"({"a":1,"b":2})"},
         {"{}", R"({"a":1,"b":2,"c":3})"});
  Expect(R"({"properties":{"a":{"const":1}},"unevaluatedProperties":false})", {R"({"a":1})"},
         {R"({"b":1})"});
}

TEST(JsonSchemaTest, ArraysHaveTheirItems) {
  Expect(R"({"items":{"const":1},"minItems":1,"maxItems":3})", {"[1]", "[1,1,1]"},
         {"[]", "[1,1,1,1]", "[2]", "[1,]", "[,1]"});
  Expect(R"({"type":"array"})", {"[]", R"([1,"a",[{}]])"}, {"{}"});
  Expect(R"({"prefixItems":[{"const":1},{"const":2}]})", {"[]", "[1]", "[1,2]"},
         {"[2]", "[1,2,3]"});
  Expect(R"({"prefixItems":[{"const":1},{"const":2}],"items":{"const":3},"minItems":1})",
         {"[1]", "[1,2]", "[1,2,3,3]"}, {"[]", "[1,3]"});
  Expect(R"({"prefixItems":[{"const":1}],"minItems":2})", {"[1,{}]"}, {"[1]", "[1,2,3]"});
  Expect(R"({"items":[{"const":1}],"additionalItems":{"const":2},"maxItems":2})", {"[]", "[1,2]"},
         {"[2]", "[1,2,2]"});
  Expect(R"({"items":false})", {"[]"}, {"[1]"});
}

TEST(JsonSchemaTest, ValuesOfEnumAndConstAreWrittenPlainly) {
  Expect(R"({"enum":["red","re","é\n",1,1.5,null,{"b":[1,2],"a":{}},[]]})",
         {R"("red")", R"("re")", R"("é\n")", "1", "1.5", "null", "[]", R"({"b":[1,2],"a":{}})",
          R"({ "b": [ 1, 2 ], "a": {} })"},
         {R"("r")", R"("\u00e9\n")", "1.0", R"({"a":{},"b":[1,2]})", "true"});
  Expect(R"({"type":"integer","enum":[1,2,"a",2.5,12],"maximum":10})", {"1", "2"},
         {"12", "2.5", R"("a")"});
  Expect(R"({"enum":["a","ab","abc"],"minLength":2,"pattern":"b$"})", {R"("ab")"},
         {R"("a")", R"("abc")"});
  EXPECT_THAT(ErrorOf(R"({"type":"string","enum":[1]})"), HasSubstr("no text"));
  EXPECT_THAT(ErrorOf(R"({"const":[1],"minItems":1})"), StartsWith("\"#/const\": an array or obj"));
}

TEST(JsonSchemaTest, AlternativesHoldTogetherWithWhatIsBesideThem) {
  Expect(R"({"anyOf":[{"type":"integer"},{"type":"string","maxLength":1}]})", {"1", R"("a")"},
         {R"("ab")", "null"});
  Expect(R"({"type":"object","properties":{"a":{},"b":{}},
             "anyOf":[{"required":["a"]},{"required":["b"]}]})",
         {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":1})"}, {"{}"});
  Expect(R"({"minimum":3,"anyOf":[{"type":"integer"},{"maximum":4.5}],"allOf":[{"maximum":5}]})",
         {"3", "5", "4.5"}, {"2", "6", "4.75"});
}

TEST(JsonSchemaTest, OneOfIsTakenWhereItsSchemasExcludeEachOther) {
  Expect(R"({"oneOf":[{"type":"integer"},{"type":["string","null"]}]})", {"1", "null"}, {"1.5"});
  Expect(R"({"oneOf":[{"const":1},{"enum":[2,"1"]}]})", {"1", "2", R"("1")"}, {"3"});
  Expect(R"({"oneOf":[{"$ref":"#/$defs/cat"},{"$ref":"#/$defs/dog"}],
             "$defs":{"cat":{"properties":{"kind":{"const":"cat"}},"required":["kind"]},
                      "dog":{"properties":{"kind":{"const":"dog"}},"required":["kind"]}}})",
         {R"({"kind":"cat"})", R"({"kind":"dog"})"}, {"{}", R"({"kind":"cow"})"});
  Expect(R"({"oneOf":[{"properties":{"a":{}},"required":["a"]},
                      {"properties":{"b":{}},"additionalProperties":false}]})",
         {R"({"a":1})", "{}", R"({"b":1})"}, {});
  for (const char* schemas :
       {R"({"type":"integer"},{"type":"number"})", R"({"const":1},{"enum":[1.0,2]})",
        R"({"minLength":1},{"minimum":1},{"maxLength":3})",
        R"({"properties":{"k":{"const":1}},"required":["k"]},{"properties":{"k":{"const":2}}},{})",
        R"({"properties":{"k":{"const":1}}},{"properties":{"k":{"const":2}}})"}) {
    EXPECT_THAT(ErrorOf(absl::StrCat("{\"oneOf\":[", schemas, "]}")),
                StartsWith("\"#\": oneOf is supported only where its schemas exclude each other"));
  }
}

TEST(JsonSchemaTest, AllOfIsMerged) {
  Expect(R"({"allOf":[{"$ref":"#/definitions/base"},
                      {"properties":{"b":{"type":"integer"},"a":{"maximum":5}},"required":["b"]}],
             "definitions":{"base":{"type":"object","properties":{"a":{"minimum":3}}}}})",
         {R"({"b":1})", R"({"a":3,"b":1})"}, {"{}", R"({"a":6,"b":1})", R"({"a":2,"b":1})"});
  // What one schema does not name, its additionalProperties are about.
  Expect(R"({"allOf":[{"properties":{"a":{}}},
                      {"properties":{"b":{}},"additionalProperties":{"type":"null"}}]})",
         {R"({"a":null,"b":1})", R"({"b":1,"c":null})"}, {R"({"a":1})", R"({"c":1})"});
  Expect(R"({"allOf":[{"prefixItems":[{"minimum":1}]},{"items":{"maximum":3},"maxItems":2}]})",
         {"[1]", "[2,3]"}, {"[0]", "[4]", "[1,1,1]"});
  Expect(R"({"allOf":[{"enum":[1,2,3]},{"enum":[2,3.0,4]},{"type":"integer"}]})", {"2", "3"},
         {"4"});
  EXPECT_THAT(ErrorOf(R"({"allOf":[{"pattern":"a"},{"pattern":"b"}]})"),
              StartsWith("\"#/allOf/1\": a second pattern"));
}

TEST(JsonSchemaTest, ReferencesAreFollowedAndMayGoRound) {
  Expect(R"({"type":"object","properties":{"value":{"type":"integer"},
             "next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},"required":["value","next"]})",
         {R"({"value":1,"next":null})", R"({"value":1,"next":{"value":2,"next":null}})"},
         {R"({"value":1,"next":{"value":2}})"});
  Expect(R"({"$ref":"#/$defs/a~1b~0%20c","$defs":{"a/b~ c":{"$ref":"#/properties/x/anyOf/1"}},
             "properties":{"x":{"anyOf":[{},{"const":1}]}}})",
         {"1"}, {"{}"});
  Expect(R"({"$ref":"#/$defs/x","description":"An annotation","$defs":{"x":{"const":1}}})", {"1"},
         {"2"});
  Expect(R"({"items":{"$ref":"#/$defs/x","minimum":2},"$defs":{"x":{"type":"integer"}}})", {"[2]"},
         {"[1]", "[2.5]"});
}

TEST(JsonSchemaTest, WhatReferencesLackIsSaid) {
  const std::string itself = "it refers to itself without any text between";
  EXPECT_THAT(ErrorOf(R"({"$ref":"#"})"), HasSubstr(itself));
  EXPECT_THAT(
      ErrorOf(R"({"items":{"$ref":"#/$defs/a"},"$defs":{"a":{"allOf":[{"$ref":"#/$defs/b"}]},
                          "b":{"anyOf":[{"const":1},{"$ref":"#/$defs/a"}]}}})"),
      HasSubstr(itself));
  // The way back leads past the schema that has the alternatives.
  EXPECT_THAT(ErrorOf(R"({"allOf":[{"anyOf":[{"const":1},{"allOf":[{"$ref":"#"}]}]}]})"),
              HasSubstr(itself));
  EXPECT_EQ(ErrorOf(R"({"items":{"$ref":"#/$defs/a"}})"),
            "\"#/items\": $ref \"#/$defs/a\" refers to nothing");
  EXPECT_THAT(ErrorOf(R"({"$ref":"https://example.org/a"})"), HasSubstr("is not supported"));
  EXPECT_THAT(ErrorOf(R"({"items":{"$id":"b","$ref":"#/a"},"a":{}})"), HasSubstr("with an $id"));
  EXPECT_THAT(ErrorOf(R"({"$ref":"#/%4"})"), HasSubstr("hexadecimal"));
  EXPECT_THAT(ErrorOf(R"({"required":["a"],"properties":{"a":{"$ref":"#"}}})"),
              HasSubstr("no text matches"));
}

TEST(JsonSchemaTest, BooleansAndAnnotationsAreSchemas) {
  for (const char* any : {"true", "{}", R"({"title":"a","default":1,"examples":[],"x-mine":[]})"}) {
    Expect(any, {"null", "-1.5e3", R"([{"a":[]}])", R"("\u0041")"}, {"", "nul", "[1,]"});
  }
  EXPECT_THAT(ErrorOf("false"), HasSubstr("no text matches"));
  EXPECT_THAT(ErrorOf(R"({"properties":{"a":false},"required":["a"]})"), HasSubstr("no text"));
  Expect(R"({"properties":{"a":false,"b":{}}})", {"{}", R"({"b":1})"}, {R"({"a":1})"});
  Expect(R"({"type":"string","nullable":true})", {"null", R"("")"}, {"1"});
}

TEST(JsonSchemaTest, WhatIsNotSupportedIsNamedWithItsPlace) {
  for (const char* keyword :
       {R"("not":{})", R"("if":{},"then":{})", R"("uniqueItems":true)", R"("contains":{})",
        R"("multipleOf":0.5)", R"("patternProperties":{"a":{}})",
        R"("propertyNames":{"minLength":1})", R"("dependentRequired":{"a":["b"]})",
        R"("dependentSchemas":{"a":{}})", R"("dependencies":{"a":["b"]})",
        R"("$dynamicRef":"#a")"}) {
    const std::string name = std::string(keyword).substr(1, std::string(keyword).find('"', 1) - 1);
    EXPECT_EQ(ErrorOf(absl::StrCat(R"({"properties":{"a/b":{)", keyword, "}}}")),
              absl::StrCat("\"#/properties/a~1b\": ", name, " is not supported"));
  }
  // Nothing is asked for, or of another type.
  Expect(R"({"type":"string","uniqueItems":true,"multipleOf":3})", {R"("a")"}, {});
  Expect(R"({"type":"array","uniqueItems":false,"if":{}})", {"[1,1]"}, {});
  Expect(R"({"propertyNames":{"type":"string"},"additionalProperties":{"type":"null"}})",
         {R"({"a":null})"}, {R"({"a":1})"});
  Expect(R"({"type":"object","patternProperties":{},"dependencies":{}})", {"{}"}, {});
  EXPECT_THAT(ErrorOf(R"({"minProperties":2})"), HasSubstr("minProperties is supported up to 1"));
  EXPECT_THAT(ErrorOf(R"({"anyOf":[{}],"unevaluatedProperties":false})"),
              HasSubstr("unevaluatedProperties is not supported beside anyOf"));
}

TEST(JsonSchemaTest, WhatIsMalformedIsNamedWithItsPlace) {
  const auto error = [](const char* keyword) {
    return ErrorOf(absl::StrCat(R"({"items":{)", keyword, "}}"));
  };
  EXPECT_EQ(error(R"("type":"str")"), "\"#/items\": there is no type \"str\"");
  EXPECT_EQ(error(R"("type":null)"), "\"#/items\": type is no name or list");
  EXPECT_EQ(error(R"("minLength":-1)"), "\"#/items\": minLength is not a count: -1");
  EXPECT_EQ(error(R"("minimum":"1")"), "\"#/items\": minimum is not a number: \"1\"");
  EXPECT_EQ(error(R"("properties":[])"), "\"#/items\": properties is not an object: []");
  EXPECT_EQ(error(R"("properties":{"a":1})"),
            "\"#/items/properties/a\": a schema is an object, true or false");
  EXPECT_EQ(error(R"("required":true)"), "\"#/items\": required is not an array: true");
  EXPECT_EQ(error(R"("anyOf":[])"), "\"#/items\": anyOf is not a list of schemas");
  EXPECT_THAT(ErrorOf("{"), StartsWith("not valid JSON"));
  EXPECT_THAT(ErrorOf(R"({"a":1,"a":2})"), HasSubstr("twice"));
}

std::string Repeated(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

TEST(JsonSchemaTest, LargeAndDeepSchemasAreRefusedSoon) {
  EXPECT_THAT(ErrorOf(Repeated("{\"items\":", 70) + "{}" + Repeated("}", 70)), HasSubstr("nest"));
  std::string product;
  for (int i = 0; i < 20; ++i) {
    absl::StrAppend(&product, R"({"anyOf":[{"minimum":)", i, R"(},{"maximum":)", i, "}]},");
  }
  EXPECT_THAT(ErrorOf("{\"allOf\":[" + product + "{}]}"), HasSubstr("the schema is too large"));
  std::string chain;
  for (int i = 0; i < 1000; ++i) {
    absl::StrAppend(&chain, "\"", i, R"(":{"items":{"$ref":"#/$defs/)", i + 1, "\"}},");
  }
  EXPECT_THAT(ErrorOf(R"({"$ref":"#/$defs/0","$defs":{)" + chain + R"("1000":{}}})"),
              HasSubstr("deep"));
  EXPECT_THAT(ErrorOf(R"({"items":{},"minItems":1e15})"), HasSubstr("too large"));
  EXPECT_EQ(ErrorOf(R"({"items":{"maxLength":1e300},"maxItems":1e15})"), "none");
}

}  // namespace
}  // namespace lockstep::grammar
