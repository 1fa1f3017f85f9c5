#include "model/grammar/json_text.h"

#include <algorithm>
#include <array>

#include "model/grammar/json_numbers.h"
#include "model/tokenizer/utf8.h"

namespace lockstep::grammar {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxIndentation = 32;
constexpr char32_t kFirstPlain = 0x20;  // those before it are control characters
constexpr char32_t kLastCodePoint = 0x10FFFF;
constexpr CodePointRange kAllCharacters[] = {{0, 0xD7FF}, {0xE000, kLastCodePoint}};
// What may stand in a string as it is.
constexpr CodePointRange kPlain[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, kLastCodePoint}};
// What has an escape of its own and must be escaped, and how.
constexpr std::pair<char32_t, char> kShortEscapes[] = {
    {'"', '"'}, {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}};
constexpr ByteRange kHexDigits[] = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};

bool Has(std::span<const CodePointRange> ranges, char32_t character) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const CodePointRange& range) {
    return range.first <= character && character <= range.last;
  });
}

std::vector<CodePointRange> PlainOnes(std::span<const CodePointRange> ranges) {
  std::vector<CodePointRange> plain;
  for (const CodePointRange& range : ranges) {
    for (const CodePointRange& most : kPlain) {
      const CodePointRange both = {std::max(range.first, most.first),
                                   std::min(range.last, most.last)};
      if (both.first <= both.last) plain.push_back(both);
    }
  }
  return plain;
}

ByteRange OneByte(char byte) { return {static_cast<uint8_t>(byte), static_cast<uint8_t>(byte)}; }

}  // namespace

JsonText::JsonText(GrammarBuilder& builder)
    : builder_(builder),
      white_space_([&] {
        constexpr ByteRange kIndentation[] = {{' ', ' '}, {'\t', '\t'}};
        const Part indentation = builder.Repeat(builder.Byte(kIndentation), 0, kMaxIndentation);
        const Part line = builder.Sequence({builder.Text("\n"), indentation});
        return builder.Optional(builder.MakeRule(builder.Choice({builder.Text(" "), line})));
      }()),
      comma_(builder.MakeRule(builder.Sequence({builder.Text(","), white_space_}))),
      colon_(builder.Sequence({builder.Text(":"), builder.Optional(builder.Text(" "))})),
      any_character_(builder.MakeRule(AnyCharacter())),
      string_(builder.MakeRule(Quoted(builder.Repeat(any_character_, 0, std::nullopt)))),
      value_rule_(builder.Declare()),
      value_(builder.Call(value_rule_)),
      object_(ObjectOf({.additional = value_})) {
  const Part array = ArrayOf({.others = value_});
  builder.Define(value_rule_, builder.Choice({object_, array, string_,
                                              JsonNumbers(builder).Number({}), builder.Text("true"),
                                              builder.Text("false"), builder.Text("null")}));
}

std::string JsonText::WrittenPlainly(const Json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

GrammarBuilder::Part JsonText::Quoted(Part characters) {
  return builder_.Sequence({builder_.Text("\""), characters, builder_.Text("\"")});
}

GrammarBuilder::Part JsonText::AnyCharacter() {
  return builder_.Choice({builder_.Character(kPlain), Escape()});
}

GrammarBuilder::Part JsonText::Escape() {
  const auto hex = [&](int64_t count) {
    return builder_.Repeat(builder_.Byte(kHexDigits), count, count);
  };
  constexpr ByteRange kLetterD[] = {{'D', 'D'}, {'d', 'd'}};
  constexpr ByteRange kNotD[] = {{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}};
  constexpr ByteRange kBelowSurrogates[] = {{'0', '7'}};
  constexpr ByteRange kHigh[] = {{'8', '9'}, {'A', 'B'}, {'a', 'b'}};
  constexpr ByteRange kLow[] = {{'C', 'F'}, {'c', 'f'}};
  const Part d = builder_.Byte(kLetterD);
  const Part one = builder_.Sequence({builder_.Byte(kNotD), hex(3)});
  const Part below = builder_.Sequence({d, builder_.Byte(kBelowSurrogates), hex(2)});
  const Part pair = builder_.Sequence(
      {d, builder_.Byte(kHigh), hex(2), builder_.Text("\\u"), d, builder_.Byte(kLow), hex(2)});
  std::vector<ByteRange> letters = {OneByte('/')};
  for (const auto& [character, letter] : kShortEscapes) letters.push_back(OneByte(letter));
  const Part code = builder_.Sequence({builder_.Text("u"), builder_.Choice({one, below, pair})});
  return builder_.Sequence({builder_.Text("\\"), builder_.Choice({builder_.Byte(letters), code})});
}

GrammarBuilder::Part JsonText::Character(std::span<const CodePointRange> ranges) {
  if (std::ranges::equal(ranges, kAllCharacters)) return any_character_;
  std::u32string key;
  for (const CodePointRange& range : ranges) key += {range.first, range.last};
  const auto [made, is_new] = characters_.try_emplace(std::move(key));
  if (!is_new) return made->second;
  std::vector<Part> choices = {builder_.Character(PlainOnes(ranges))};
  std::vector<ByteRange> letters;
  for (const auto& [character, letter] : kShortEscapes) {
    if (Has(ranges, character)) letters.push_back(OneByte(letter));
  }
  if (!letters.empty()) {
    choices.push_back(builder_.Sequence({builder_.Text("\\"), builder_.Byte(letters)}));
  }
  if (ranges[0].first < kFirstPlain) choices.push_back(ControlEscape(ranges));
  const bool is_small = choices.size() == 1 && ranges.back().last < 0x80;
  const Part choice = builder_.Choice(std::move(choices));
  return made->second = is_small ? choice : builder_.MakeRule(choice);
}

// \u0000 to \u001f.
GrammarBuilder::Part JsonText::ControlEscape(std::span<const CodePointRange> ranges) {
  std::vector<Part> choices;
  for (char32_t high = 0; high < 2; ++high) {
    std::vector<ByteRange> low;
    for (char32_t digit = 0; digit < 16; ++digit) {
      if (!Has(ranges, high * 16 + digit)) continue;
      low.push_back(OneByte("0123456789abcdef"[digit]));
      if (digit >= 10) low.push_back(OneByte("ABCDEF"[digit - 10]));
    }
    choices.push_back(
        builder_.Sequence({builder_.Text(high == 0 ? "0" : "1"), builder_.Byte(low)}));
  }
  return builder_.Sequence({builder_.Text("\\u00"), builder_.Choice(std::move(choices))});
}

GrammarBuilder::Part JsonText::StringOf(int64_t min_characters,
                                        std::optional<int64_t> max_characters) {
  if (min_characters == 0 && !max_characters.has_value()) return string_;
  const auto [made, is_new] = strings_.try_emplace({min_characters, max_characters});
  if (is_new) {
    made->second =
        builder_.MakeRule(Quoted(builder_.Repeat(any_character_, min_characters, max_characters)));
  }
  return made->second;
}

GrammarBuilder::Part JsonText::OneOf(const std::vector<const Json*>& values) {
  std::vector<std::string> texts;
  std::vector<Part> choices;
  for (const Json* value : values) {
    if (value->is_structured()) {
      choices.push_back(Value(*value));
    } else {
      texts.push_back(WrittenPlainly(*value));
    }
  }
  choices.push_back(builder_.OneOf(std::move(texts)));
  return builder_.Choice(std::move(choices));
}

GrammarBuilder::Part JsonText::Value(const Json& value) {
  if (!value.is_structured()) return builder_.Text(WrittenPlainly(value));
  std::vector<Part> parts;
  for (const auto& [name, entry] : value.items()) {
    if (!parts.empty()) parts.push_back(comma_);
    const Part text = Value(entry);
    parts.push_back(
        value.is_array() ? text : NameAndValue(builder_.Text(WrittenPlainly(Json(name))), text));
  }
  const Part inside = parts.empty() ? builder_.Empty() : builder_.Sequence(std::move(parts));
  return value.is_array() ? List('[', inside, ']') : List('{', inside, '}');
}

}  // namespace lockstep::grammar
