#include "model/grammar/tool_calls.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/grammar/free_text.h"
#include "model/grammar/json_schema.h"
#include "model/grammar/json_text.h"
#include "model/grammar/thought.h"
#include "model/json/strict_json.h"
#include "model/tokenizer/utf8.h"

namespace lockstep::grammar {
namespace {

using Part = GrammarBuilder::Part;

constexpr std::string_view kSpaces = " \t\n\r";
constexpr std::string_view kIndentation = " \t";
constexpr char32_t kLastAscii = 0x7F;
constexpr char32_t kLastCharacter = 0x10FFFF;
constexpr int kMostBreaks = 4;  // between calls, and behind the last
constexpr char kNoParameters[] =
    R"({"type": "object", "properties": {}, "additionalProperties": false})";
// Of a function's name: a text that begins a call with so much of it is a call of a function whose
// name begins so.
constexpr size_t kMostOfName = 24;

// Numbers and the bytes that they count.
class TextReader {
 public:
  explicit TextReader(std::string_view text) : rest_(text) {}

  std::optional<size_t> Number(char end) {
    size_t number = 0;
    const auto [next, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
    if (error != std::errc() || next == rest_.data() + rest_.size() || *next != end) {
      return std::nullopt;
    }
    rest_.remove_prefix(static_cast<size_t>(next - rest_.data()) + 1);
    return number;
  }
  std::optional<std::string> Bytes(size_t count) {
    if (count > rest_.size()) return std::nullopt;
    std::string bytes(rest_.substr(0, count));
    rest_.remove_prefix(count);
    return bytes;
  }
  bool has_ended() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

// White space before a character, as JsonText has it, but before all.
enum class Space { kNone, kAny, kLine, kOne };

// What a call begins with: its brackets, perhaps a type, and a function's name.
struct Opening {
  bool is_whole = false;
  Space space = Space::kNone;
  std::map<char32_t, std::shared_ptr<Opening>> next;  // some by two ways
};
using OpeningPtr = std::shared_ptr<Opening>;

// Where a text leads that is no longer than kMostOfName. to: if it is not null, the last character
// leads there.
OpeningPtr Lead(OpeningPtr from, std::string_view text, const OpeningPtr& to = nullptr) {
  for (size_t left = kMostOfName; left > 0 && !text.empty(); --left) {
    const Utf8Unit unit = NextUtf8Unit(text);
    text.remove_prefix(unit.num_bytes);
    OpeningPtr& next = from->next[unit.code_point];
    if (next == nullptr) next = text.empty() && to != nullptr ? to : std::make_shared<Opening>();
    from = next;
  }
  return from;
}
OpeningPtr Lead(const OpeningPtr& from, std::string_view text, Space behind) {
  OpeningPtr to = Lead(from, text);
  to->space = behind;
  return to;
}

class ToolCallGrammar {
 public:
  ToolCallGrammar(const ToolCalls& calls, bool after_thought, GrammarBuilder& builder)
      : calls_(calls), after_thought_(after_thought), builder_(builder), schemas_(builder) {}

  absl::StatusOr<Part> Make() {
    if (!calls_.answer) return Calls();
    if (calls_.required) return absl::InvalidArgumentError("are required, and have an answer");
    ASSIGN_OR_RETURN(const Part calls, Calls());
    auto answer = schemas_.Add(*calls_.answer);
    if (answer.ok()) return builder_.Choice({calls, *answer});
    return absl::InvalidArgumentError(absl::StrCat("answer: ", answer.status().message()));
  }

 private:
  // Whether the text may be something else than calls and what stands beside it.
  bool is_free() const { return !calls_.required && !calls_.answer; }

  absl::StatusOr<Part> Calls() {
    ASSIGN_OR_RETURN(const Part call, AnyCall());
    switch (calls_.form) {
      case ToolCalls::Form::kMarked:
        return Marked(call);
      case ToolCalls::Form::kList:
        return Alone(schemas_.text().ArrayOf(
            {.first = {call},
             .others = call,
             .min_items = 1,
             .max_items = calls_.required ? std::optional<int64_t>(1) : std::nullopt}));
      case ToolCalls::Form::kJson:
        return Alone(call);
    }
    return absl::InvalidArgumentError("are of no form");
  }

  absl::StatusOr<Part> AnyCall() {
    RETURN_IF_ERROR(CheckNumFunctions(calls_.functions.size()));
    std::vector<Part> choices;
    for (size_t i = 0; i < calls_.functions.size(); ++i) {
      const ToolCalls::Function& function = calls_.functions[i];
      if (function.name.empty()) {
        return absl::InvalidArgumentError(absl::StrCat("function ", i, " has no name"));
      }
      ASSIGN_OR_RETURN(const Part arguments, Arguments(function));
      // Models that are shown functions as OpenAI describes them may say so.
      choices.push_back(schemas_.text().ObjectOf(
          {.members = {{.name = "type", .value = builder_.Text("\"function\"")},
                       {.name = "name",
                        .value = builder_.Text(JsonText::WrittenPlainly(function.name)),
                        .is_required = true},
                       {.name = calls_.form == ToolCalls::Form::kJson ? "parameters" : "arguments",
                        .value = arguments,
                        .is_required = true}}}));
    }
    return builder_.MakeRule(builder_.Choice(std::move(choices)));
  }

  absl::StatusOr<Part> Arguments(const ToolCalls::Function& function) {
    const bool takes_some = !function.parameters.empty();
    auto arguments = schemas_.Add(takes_some ? function.parameters : kNoParameters);
    if (arguments.ok()) return arguments;
    return absl::InvalidArgumentError(
        absl::StrCat("function ", QuotedJson(function.name), ": ", arguments.status().message(),
                     calls_.required ? "" : " (one that is not strict takes any arguments)"));
  }

  // One after the other, at the end of a text.
  Part Marked(Part call) {
    const Part line_break = builder_.Optional(builder_.Text("\n"));
    const Part breaks = builder_.Repeat(builder_.Text("\n"), 0, kMostBreaks);
    const Part first = builder_.Text(kToolCallBegin);
    const Part rest =
        builder_.Sequence({line_break, call, line_break, builder_.Text(kToolCallEnd)});
    if (calls_.required) return builder_.Sequence({first, rest});
    const Part more = builder_.Repeat(builder_.Sequence({breaks, first, rest}), 0, std::nullopt);
    if (!is_free()) return builder_.Sequence({first, rest, more, breaks});
    return builder_.Choice(
        {FreeTextWithout(kToolCallBegin, builder_),
         builder_.Sequence({FreeTextUpTo(kToolCallBegin, builder_), rest, more, breaks})});
  }

  // The whole text, or one that does not begin so.
  Part Alone(Part calls) {
    if (!is_free()) return calls;
    const auto root = std::make_shared<Opening>();
    root->space = Space::kAny;
    const bool is_list = calls_.form == ToolCalls::Form::kList;
    const OpeningPtr object =
        Lead(is_list ? Lead(root, "[", Space::kLine) : root, "{", Space::kLine);
    const OpeningPtr name = Lead(object, "\"name\":", Space::kOne);
    const OpeningPtr type = Lead(object, "\"type\":", Space::kOne);
    Lead(Lead(type, "\"function\",", Space::kLine), "\"name\":", name);
    for (const ToolCalls::Function& function : calls_.functions) {
      Lead(name, JsonText::WrittenPlainly(function.name))->is_whole = true;
    }
    if (after_thought_) Lead(root, kThoughtBegin)->is_whole = true;
    constexpr CodePointRange kBeyondAscii = {kLastAscii + 1, kLastCharacter};
    free_text_ = builder_.MakeRule(FreeText(builder_));
    beyond_ascii_ =
        builder_.MakeRule(builder_.Sequence({builder_.Character({&kBeyondAscii, 1}), free_text_}));
    return builder_.Choice({builder_.Sequence({SomeOf(kSpaces), calls}), Otherwise(*root)});
  }

  // A text that goes on another way, or ends before.
  Part Otherwise(const Opening& opening) {
    if (opening.is_whole) return builder_.Choice({});
    switch (opening.space) {
      case Space::kNone:
        break;
      case Space::kAny:
        return builder_.Sequence({SomeOf(kSpaces), Here(opening, kSpaces)});
      case Space::kOne:
        return builder_.Choice(
            {Here(opening, " "), builder_.Sequence({builder_.Text(" "), Here(opening, "")})});
      case Space::kLine:
        return builder_.Choice({Here(opening, " \n"),
                                builder_.Sequence({builder_.Text(" "), Here(opening, "")}),
                                builder_.Sequence({builder_.Text("\n"), SomeOf(kIndentation),
                                                   Here(opening, kIndentation)})});
    }
    return Here(opening, "");
  }

  // But not by these, which are read already.
  Part Here(const Opening& opening, std::string_view but) {
    std::u32string expected(but.begin(), but.end());
    std::vector<Part> choices = {builder_.Empty()};
    for (const auto& [character, next] : opening.next) {
      expected += character;
      const CodePointRange range = {character, character};
      choices.push_back(builder_.Sequence({builder_.Character({&range, 1}), Behind(*next)}));
    }
    // Where nothing beyond ASCII is expected, all of that is one way, which such places share.
    const bool shares = std::all_of(expected.begin(), expected.end(),
                                    [](char32_t character) { return character <= kLastAscii; });
    if (shares) choices.push_back(beyond_ascii_);
    choices.push_back(builder_.Sequence(
        {CharacterBut(expected, builder_, shares ? kLastAscii : kLastCharacter), free_text_}));
    return builder_.Choice(std::move(choices));
  }

  // Where white space may come before it, several ways lead there.
  Part Behind(const Opening& opening) {
    const auto [made, is_new] = otherwise_.try_emplace(&opening, 0);
    if (is_new) made->second = MakeBehind(opening);
    return made->second;
  }
  Part MakeBehind(const Opening& opening) {
    const Part part = Otherwise(opening);
    return opening.space == Space::kNone ? part : builder_.MakeRule(part);
  }

  Part SomeOf(std::string_view characters) {
    std::vector<ByteRange> bytes;
    for (const char each : characters) {
      bytes.push_back({static_cast<uint8_t>(each), static_cast<uint8_t>(each)});
    }
    return builder_.Repeat(builder_.Byte(bytes), 0, std::nullopt);
  }

  const ToolCalls& calls_;
  const bool after_thought_;
  GrammarBuilder& builder_;
  JsonSchemas schemas_;
  Part free_text_ = 0;
  Part beyond_ascii_ = 0;  // and free text behind it
  std::map<const Opening*, Part> otherwise_;
};

bool Consume(std::string_view token, std::string_view& text) {
  if (text.substr(0, token.size()) != token) return false;
  text.remove_prefix(token.size());
  return true;
}

void SkipAll(std::string_view characters, std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(characters), text.size()));
}

// Space::kLine.
void SkipLine(std::string_view& text) {
  if (!Consume(" ", text) && Consume("\n", text)) SkipAll(kIndentation, text);
}

}  // namespace

absl::Status CheckNumFunctions(size_t num_functions) {
  if (num_functions >= 1 && num_functions <= ToolCalls::kMaxFunctions) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "are of ", num_functions, " functions, must be 1 to ", ToolCalls::kMaxFunctions));
}

std::string TextOf(const ToolCalls& calls) {
  std::string text = absl::StrCat(static_cast<int>(calls.form), " ", calls.required ? 1 : 0, " ",
                                  calls.functions.size(), "\n");
  for (const ToolCalls::Function& function : calls.functions) {
    absl::StrAppend(&text, function.name.size(), " ", function.parameters.size(), "\n",
                    function.name, function.parameters);
  }
  if (calls.answer) absl::StrAppend(&text, calls.answer->size(), "\n", *calls.answer);
  return text;
}

absl::StatusOr<ToolCalls> ParseToolCalls(std::string_view text) {
  const absl::Status other = absl::InvalidArgumentError("are not written as they must be");
  TextReader reader(text);
  const auto form = reader.Number(' ');
  const auto required = reader.Number(' ');
  const auto count = reader.Number('\n');
  if (!form || *form > static_cast<size_t>(ToolCalls::Form::kMarked) || !required ||
      *required > 1 || !count) {
    return other;
  }
  ToolCalls calls{static_cast<ToolCalls::Form>(*form), *required == 1, {}, std::nullopt};
  for (size_t i = 0; i < *count; ++i) {
    const auto name_size = reader.Number(' ');
    const auto parameters_size = reader.Number('\n');
    if (!name_size || !parameters_size) return other;
    auto name = reader.Bytes(*name_size);
    auto parameters = reader.Bytes(*parameters_size);
    if (!name || !parameters) return other;
    calls.functions.push_back({*std::move(name), *std::move(parameters)});
  }
  if (!reader.has_ended()) {
    const auto size = reader.Number('\n');
    if (size) calls.answer = reader.Bytes(*size);
    if (!calls.answer) return other;
  }
  return reader.has_ended() ? absl::StatusOr<ToolCalls>(std::move(calls)) : other;
}

absl::StatusOr<Part> AddToolCalls(const ToolCalls& calls, bool after_thought,
                                  GrammarBuilder& builder) {
  return ToolCallGrammar(calls, after_thought, builder).Make();
}

bool BeginsLikeACall(std::string_view text, ToolCalls::Form form,
                     const std::set<std::string>& names) {
  SkipAll(kSpaces, text);
  if (form == ToolCalls::Form::kList) {
    if (!Consume("[", text)) return false;
    SkipLine(text);
  }
  if (!Consume("{", text)) return false;
  SkipLine(text);
  if (Consume("\"type\":", text)) {
    Consume(" ", text);
    if (!Consume("\"function\",", text)) return false;
    SkipLine(text);
  }
  if (!Consume("\"name\":", text)) return false;
  Consume(" ", text);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    std::string_view rest = text;
    return Consume(JsonText::WrittenPlainly(name), rest);
  });
}

}  // namespace lockstep::grammar
