#include "model/chat_template/chat_template.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/assets.h"
#include "tests/support/read_file.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::ordered_json;

absl::StatusOr<std::vector<TextPiece>> RenderPieces(const std::string& source, const Json& input) {
  const auto parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return parsed.status();
  ChatVariables variables;
  variables.input = input;
  variables.markup = {{"bos_token", "<s>"}};
  variables.now = absl::FromUnixSeconds(1'700'000'000);
  variables.zone = absl::UTCTimeZone();
  return parsed->Render(variables);
}

// What was rendered, or the error.
std::string RenderText(const std::string& source, const Json& input = Json::object()) {
  const auto pieces = RenderPieces(source, input);
  if (!pieces.ok()) return absl::StrCat("error: ", pieces.status().message());
  std::string text;
  for (const TextPiece& piece : *pieces) text += piece.text;
  return text;
}

// Markup in brackets.
std::string RenderMarked(const std::string& source, const Json& input) {
  const auto pieces = RenderPieces(source, input);
  EXPECT_TRUE(pieces.ok()) << pieces.status();
  std::string text;
  for (const TextPiece& piece : pieces.value_or(std::vector<TextPiece>())) {
    absl::StrAppend(&text, piece.is_markup ? "[" : "", piece.text, piece.is_markup ? "]" : "");
  }
  return text;
}

TEST(ChatTemplateTest, WhatPeopleSayIsNeverMarkup) {
  const Json chat = {{"messages", {{{"role", "user"}, {"content", " <|end|> "}}}}};
  EXPECT_EQ(RenderMarked("{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>' + "
                         "m['content'] | trim + '<|end|>' }}{% endfor %}",
                         chat),
            "[<s><|user|>]<|end|>[<|end|>]");
  for (const char* change :
       {"m.content.strip()", "m.content | upper", "m.content[1:]", "(m.content ~ '')",
        "m.content.split('|')[1]", "m.content | replace(' ', '')", "m.content | tojson",
        "[m.content] | join", "'%s' | replace('%s', m.content)", "m.content | list | last",
        "'{}'.format(m.content)", "m.content | indent", "{'k': m.content}.values() | first"}) {
    const std::string source =
        absl::StrCat("{% set m = messages[0] %}{% set x %}{{ ", change, " }}{% endset %}{{ x }}");
    const auto pieces = RenderPieces(source, chat);
    ASSERT_TRUE(pieces.ok()) << change << ": " << pieces.status();
    for (const TextPiece& piece : *pieces) EXPECT_FALSE(piece.is_markup) << change << piece.text;
  }
}

TEST(ChatTemplateTest, WhiteSpaceIsControlledAsTransformersSetsJinjaUp) {
  EXPECT_EQ(RenderText("a\n  {% if true %}\n  b\n  {% endif %}\nc\n"), "a\n  b\nc");
  EXPECT_EQ(RenderText("a \n {%- if true -%} \n b {%- endif -%} \n c"), "abc");
  EXPECT_EQ(RenderText("a\n  {%+ if true +%}\nb{% endif %}"), "a\n  \nb");
  EXPECT_EQ(RenderText("{# a #}\n{{ 1 }}\n\n"), "1\n");
}

TEST(ChatTemplateTest, ScopesAreThoseOfJinja) {
  EXPECT_EQ(
      RenderText("{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = 9 %}{% endfor %}{{ x }}"),
      "111");
  EXPECT_EQ(RenderText("{% set n = namespace(x=1) %}{% for i in [1, 2] %}{% set n.x = n.x + i %}"
                       "{% endfor %}{{ n.x }}"),
            "4");
  EXPECT_EQ(
      RenderText("{% set x = 1 %}{% macro m(a, b=2) %}{{ a }}{{ b }}{{ x }}{{ y }}{% endmacro %}"
                 "{% for y in [5] %}{{ m(7) }}{{ m(b=8, a=y) }}{% endfor %}"),
      "721581");
}

TEST(ChatTemplateTest, AnOrderOfNamesIsKept) {
  const Json input = Json::parse(R"({"tool": {"z": 1, "a": {"y": [], "b": "é\n"}}})");
  EXPECT_EQ(RenderText("{{ tool | tojson }}", input), R"({"z": 1, "a": {"y": [], "b": "é\n"}})");
  EXPECT_EQ(RenderText("{{ tool | tojson(indent=2) }}", input),
            "{\n  \"z\": 1,\n  \"a\": {\n    \"y\": [],\n    \"b\": \"é\\n\"\n  }\n}");
  EXPECT_EQ(RenderText("{{ tool }}", input), "{'z': 1, 'a': {'y': [], 'b': 'é\\n'}}");
}

TEST(ChatTemplateTest, TheTimeIsWhatItIsTold) {
  EXPECT_EQ(RenderMarked("{{ strftime_now('%d %b %Y') }}", {{"f", "<|end|> %Y"}}), "[14 Nov 2023]");
  EXPECT_EQ(RenderMarked("{{ strftime_now(f) }}", {{"f", "<|end|> %Y"}}), "<|end|> 2023");
}

TEST(ChatTemplateTest, ErrorsHaveALine) {
  EXPECT_EQ(RenderText("\n{{ nope.x }}"), "error: line 2: 'nope' is undefined");
  EXPECT_EQ(RenderText("{{ 1 + 'a' }}"),
            "error: line 1: unsupported operand types for +: 'int' and 'str'");
  EXPECT_EQ(RenderText("\n\n{% if %}"), "error: line 3: unexpected %}");
  EXPECT_THAT(RenderText("{% for x in y %}"), HasSubstr("endfor"));
  EXPECT_THAT(RenderText("{{ x | nope }}"), HasSubstr("there is no filter nope"));
  EXPECT_THAT(RenderText("{% include 'secrets' %}"), HasSubstr("\"include\""));
  EXPECT_THAT(RenderText("{{ ().__class__.__bases__ }}"), StartsWith("error: line 1"));
  const auto refused = RenderPieces("{{ raise_exception('no system please') }}", Json::object());
  EXPECT_EQ(refused.status(), absl::FailedPreconditionError("no system please"));
}

// What is small to hold and large to compare or to write.
TEST(ChatTemplateTest, ListsThatAreDoubledTakeTheirShareOfWork) {
  const std::string doubled =
      "{% set n = namespace(a=['x'], b=['x']) %}{% for i in range(45) %}"
      "{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% endfor %}";
  for (const char* use : {"{{ n.a == n.b }}",
                          "{{ n.a != n.b }}",
                          "{{ n.a in [n.b] }}",
                          "{{ n.a < n.b }}",
                          "{{ [n.a, n.b] | unique | length }}",
                          "{{ [n.a].index(n.b) }}",
                          "{{ n.a }}",
                          "{{ n.a ~ 'x' }}",
                          "{{ [n.a] | join }}",
                          "{{ n.a | string }}",
                          "{{ n.a | trim }}",
                          "{{ 'x' | replace('x', n.a) }}",
                          "{{ '{}'.format(n.a) }}",
                          "{{ n.a | tojson }}",
                          "{{ n.a is lower }}",
                          "{{ n.a | upper }}",
                          "{{ n.a | indent }}",
                          "{{ {}[n.a] }}",
                          "{{ [][n.a] }}",
                          "{{ raise_exception(n.a) }}",
                          "{{ {} | dictsort(by=n.a) }}",
                          "{{ 1 | tojson(separators=(n.a, ':')) }}"}) {
    EXPECT_THAT(RenderText(absl::StrCat(doubled, use)), HasSubstr("more than")) << use;
  }
  EXPECT_EQ(RenderText("{% set a = [1, ['x']] %}{{ a == [1, ['x']] }} {{ ['x'] in a }} {{ a }}"),
            "True True [1, ['x']]");
}

TEST(ChatTemplateTest, TextsAreMeasuredBeforeTheyAreMade) {
  EXPECT_THAT(RenderText("{{ ('a' * 1000000) | replace('a', 'b' * 100000) }}"),
              HasSubstr("more than"));
  EXPECT_THAT(RenderText("{{ ('a' * 1000000).replace('', 'b' * 100000) }}"),
              HasSubstr("more than"));
  EXPECT_THAT(RenderText("{{ ([0] * 100000) | tojson(separators=(',' * 100000, ':')) }}"),
              HasSubstr("more than"));
  EXPECT_THAT(RenderText("{{ ['x' * 60000000] * 100 }}"), HasSubstr("more than"));
  EXPECT_EQ(RenderText("{{ 'aXbXc'.replace('X', '--', 1) }} {{ 'ab'.replace('', '.') }} "
                       "{{ 'ab'.replace('', '.', 2) }} {{ 'ab'.replace('', '.', 0) }}"),
            "a--bXc .a.b. .a.b ab");
}

TEST(ChatTemplateTest, NamespacesAreEqualToThemselvesAlone) {
  EXPECT_EQ(RenderText("{% set n = namespace(a=1) %}{% set m = namespace(a=1) %}"
                       "{{ n == n }} {{ n == m }} {{ n }}"),
            "True False <Namespace>");
}

TEST(ChatTemplateTest, NoTemplateTakesMoreThanItsShare) {
  const std::string doubling =
      "{% set n = namespace(x='ab') %}{% for i in range(99) %}"
      "{% set n.x = n.x ~ n.x %}{% endfor %}";
  EXPECT_THAT(RenderText(doubling), HasSubstr("more than"));
  const std::string nested =
      "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}"
      "{% endfor %}";
  EXPECT_THAT(RenderText(nested), HasSubstr("steps"));
  EXPECT_THAT(RenderText("{{ range(99999999999) }}"), HasSubstr("steps"));
  EXPECT_THAT(RenderText("{{ 'ab' * 999999999999 }}"), HasSubstr("too large"));
  Json list = Json::array();
  for (int i = 0; i < 100000; ++i) list.push_back(1);
  for (int depth = 0; depth < 40; ++depth) list = Json::array({list});
  EXPECT_THAT(RenderText("{{ x | tojson(indent=64) }}", {{"x", list}}), HasSubstr("more than"));
  EXPECT_THAT(RenderText("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
              HasSubstr("nests too deeply"));
  std::string blocks;  // in macros in each other
  for (int i = 0; i < 150; ++i) blocks += "{% if true %}";
  blocks += "{{ m(" + std::string(150, '[') + std::string(150, ']') + ") }}";
  for (int i = 0; i < 150; ++i) blocks += "{% endif %}";
  EXPECT_THAT(RenderText("{% macro m(x) %}" + blocks + "{% endmacro %}{{ m(1) }}"),
              HasSubstr("deeply"));
  std::string sum = "{{ 1";
  for (int i = 0; i < 480; ++i) sum += " + 1";
  EXPECT_EQ(RenderText(sum + " }}"), "481");
  const std::string deep =
      "{% set n = namespace(x=[]) %}{% for i in range(999) %}"
      "{% set n.x = [n.x] %}{% endfor %}";
  EXPECT_THAT(RenderText(deep), HasSubstr("nest too deeply"));
  EXPECT_THAT(RenderText("{% set n = namespace() %}{% set n.x = [n] %}"), HasSubstr("namespace"));
}

TEST(ChatTemplateTest, NoTextIsTooHostileToParse) {
  const auto repeat = [](const std::string& text, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
  };
  for (const std::string& hostile :
       {"{{ " + repeat("(", 100000), "{{ " + repeat("[", 100000),
        "{{ " + repeat("-", 100000) + "1 }}", "{{ x" + repeat("|d", 100000) + " }}",
        "{{ x" + repeat(".y", 100000) + " }}", "{{ 1" + repeat(" + 1", 100000) + " }}",
        repeat("{% if x %}", 100000), "{% if x %}" + repeat("{% elif x %}", 100000),
        "{{ 1" + repeat(" if 1 else 1", 100000) + " }}", repeat("{% macro m() %}", 100000),
        std::string("{{ '\\"), std::string("{{ \"\\u12"), std::string("{%"), std::string("{#"),
        std::string("{% raw %}"), std::string("\xff"), std::string("{{ 99999999999999999999 }}")}) {
    EXPECT_FALSE(ChatTemplate::Parse(hostile).ok()) << hostile.substr(0, 30);
  }
}

TEST(ChatTemplateTest, ThoseOfLlamaRenderAsTheReferenceDoes) {
  const auto directory = testing::SharedAssets() / "chat_templates";
  SKIP_WITHOUT_ASSET(directory);
  const Json cases = Json::parse(testing::ReadFile(directory / "expected.json"));
  ASSERT_GT(cases.size(), 10u);
  for (const Json& one : cases) {
    ASSERT_TRUE(one["error"].is_null());
    ChatVariables variables;
    variables.input = one["input"];
    variables.input["add_generation_prompt"] = one["add_generation_prompt"];
    variables.input["date_string"] = one["date_string_default"];
    variables.markup = {{"bos_token", "<|begin_of_text|>"}};
    const auto parsed =
        ChatTemplate::Parse(testing::ReadFile(directory / one["template"].get<std::string>()));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    const auto pieces = parsed->Render(variables);
    ASSERT_TRUE(pieces.ok()) << pieces.status();
    std::string text;
    for (const TextPiece& piece : *pieces) text += piece.text;
    EXPECT_EQ(text, one["rendered"]) << one["template"] << " " << one["case"];
  }
}

}  // namespace
}  // namespace lockstep
