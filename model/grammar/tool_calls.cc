#include "model/grammar/tool_calls.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/grammar/free_text.h"
#include "model/grammar/json_schema.h"
#include "model/grammar/json_text.h"
#include "model/json/strict_json.h"
#include "model/tokenizer/utf8.h"

namespace lockstep::grammar {
namespace {

using Part = GrammarBuilder::Part;

constexpr std::u32string_view kSpace = U" \t\n\r";
constexpr char32_t kLastAscii = 0x7F;
constexpr char32_t kLastCharacter = 0x10FFFF;
constexpr int kMostBreaks = 4;  // between calls
constexpr char kNoParameters[] =
    R"({"type": "object", "properties": {}, "additionalProperties": false})";

absl::StatusOr<ToolCalls> Parse(std::string_view text) {
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseStrictJson(text));
  const absl::Status other = absl::InvalidArgumentError("are not written as they must be");
  if (!json.is_object() || !json.contains("form") || !json.contains("required") ||
      !json.contains("functions") || !json["form"].is_number_unsigned() ||
      !json["required"].is_boolean() || !json["functions"].is_array()) {
    return other;
  }
  const auto form = json["form"].get<uint64_t>();
  if (form > static_cast<uint64_t>(ToolCalls::Form::kMarked)) return other;
  ToolCalls calls{static_cast<ToolCalls::Form>(form), {}, json["required"].get<bool>()};
  for (const nlohmann::json& function : json["functions"]) {
    if (!function.is_array() || function.size() != 2 || !function[0].is_string() ||
        !function[1].is_string()) {
      return other;
    }
    calls.functions.push_back({function[0].get<std::string>(), function[1].get<std::string>()});
  }
  return calls;
}

// Of a function's name: a text that begins a call with so much of it is a call of a function whose
// name begins so.
constexpr size_t kMostOfName = 24;

// What a call begins with, wherever white space may be: its brackets, and a function's name.
struct Opening {
  bool is_whole = false;
  bool may_have_space = false;  // before the next
  std::map<char32_t, std::unique_ptr<Opening>> next;
};

class OpeningPath {
 public:
  explicit OpeningPath(Opening& root) : at_(&root) { at_->may_have_space = true; }
  // Characters without space between them, where there may be space behind.
  void Add(std::string_view text, bool may_have_space) {
    for (size_t left = kMostOfName; left > 0 && !text.empty(); --left) {
      const Utf8Unit unit = NextUtf8Unit(text);
      text.remove_prefix(unit.num_bytes);
      std::unique_ptr<Opening>& next = at_->next[unit.code_point];
      if (next == nullptr) next = std::make_unique<Opening>();
      at_ = next.get();
    }
    at_->may_have_space = may_have_space;
  }
  void End() { at_->is_whole = true; }

 private:
  Opening* at_;
};

class ToolCallGrammar {
 public:
  ToolCallGrammar(const ToolCalls& calls, GrammarBuilder& builder)
      : calls_(calls), builder_(builder), json_(builder) {}

  absl::StatusOr<Part> Make() {
    ASSIGN_OR_RETURN(const Part call, AnyCall());
    switch (calls_.form) {
      case ToolCalls::Form::kMarked:
        return Marked(call);
      case ToolCalls::Form::kList:
        return Alone(json_.ArrayOf(
            {.first = {call},
             .others = call,
             .min_items = 1,
             .max_items = calls_.required ? std::optional<int64_t>(1) : std::nullopt}));
      case ToolCalls::Form::kJson:
        return Alone(call);
    }
    return absl::InvalidArgumentError("are of no form");
  }

 private:
  absl::StatusOr<Part> AnyCall() {
    std::vector<Part> choices;
    for (size_t i = 0; i < calls_.functions.size(); ++i) {
      const ToolCalls::Function& function = calls_.functions[i];
      if (function.name.empty()) {
        return absl::InvalidArgumentError(absl::StrCat("function ", i, " has no name"));
      }
      auto arguments = Arguments(function);
      if (!arguments.ok()) {
        return absl::InvalidArgumentError(absl::StrCat("function ", QuotedJson(function.name), ": ",
                                                       arguments.status().message()));
      }
      choices.push_back(json_.ObjectOf(
          {.members = {{.name = "name",
                        .value = builder_.Text(JsonText::WrittenPlainly(function.name)),
                        .is_required = true},
                       {.name = calls_.form == ToolCalls::Form::kJson ? "parameters" : "arguments",
                        .value = *arguments,
                        .is_required = true}}}));
    }
    if (choices.empty()) return absl::InvalidArgumentError("must be of at least one function");
    return builder_.MakeRule(builder_.Choice(std::move(choices)));
  }

  absl::StatusOr<Part> Arguments(const ToolCalls::Function& function) {
    const bool takes_some = !function.parameters.empty();
    return AddJsonSchema(takes_some ? function.parameters : kNoParameters, builder_);
  }

  // One after the other, at the end of a text.
  Part Marked(Part call) {
    const Part line_break = builder_.Optional(builder_.Text("\n"));
    const Part rest =
        builder_.Sequence({line_break, call, line_break, builder_.Text(kToolCallEnd)});
    const Part first = builder_.Text(kToolCallBegin);
    if (calls_.required) return builder_.Sequence({first, rest});
    const Part more =
        builder_.Sequence({builder_.Repeat(builder_.Text("\n"), 0, kMostBreaks), first, rest});
    return builder_.Choice({FreeTextWithout(kToolCallBegin, builder_),
                            builder_.Sequence({FreeTextUpTo(kToolCallBegin, builder_), rest,
                                               builder_.Repeat(more, 0, std::nullopt)})});
  }

  // The whole text, or one that does not begin so.
  Part Alone(Part calls) {
    if (calls_.required) return calls;
    Opening root;
    for (const ToolCalls::Function& function : calls_.functions) {
      OpeningPath path(root);
      if (calls_.form == ToolCalls::Form::kList) path.Add("[", true);
      path.Add("{", true);
      path.Add("\"name\"", true);
      path.Add(":", true);
      path.Add(JsonText::WrittenPlainly(function.name), false);
      path.End();
    }
    constexpr CodePointRange kBeyondAscii = {kLastAscii + 1, kLastCharacter};
    free_text_ = builder_.MakeRule(FreeText(builder_));
    beyond_ascii_ =
        builder_.MakeRule(builder_.Sequence({builder_.Character({&kBeyondAscii, 1}), free_text_}));
    return builder_.Choice({builder_.Sequence({Space(), calls}), Otherwise(root)});
  }

  // A text that goes on another way, or ends before.
  Part Otherwise(const Opening& opening) {
    if (opening.is_whole) return builder_.Choice({});
    std::u32string expected(opening.may_have_space ? kSpace : U"");
    std::vector<Part> choices = {builder_.Empty()};
    for (const auto& [character, next] : opening.next) {
      expected += character;
      const CodePointRange range = {character, character};
      choices.push_back(builder_.Sequence({builder_.Character({&range, 1}), Otherwise(*next)}));
    }
    // Where nothing beyond ASCII is expected, all of that is one way, which such places share.
    const bool shares = std::all_of(expected.begin(), expected.end(),
                                    [](char32_t character) { return character <= kLastAscii; });
    if (shares) choices.push_back(beyond_ascii_);
    choices.push_back(builder_.Sequence(
        {CharacterBut(expected, builder_, shares ? kLastAscii : kLastCharacter), free_text_}));
    const Part rest = builder_.Choice(std::move(choices));
    return opening.may_have_space ? builder_.Sequence({Space(), rest}) : rest;
  }

  Part Space() {
    constexpr ByteRange kSpaces[] = {{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}};
    return builder_.Repeat(builder_.Byte(kSpaces), 0, std::nullopt);
  }

  const ToolCalls& calls_;
  GrammarBuilder& builder_;
  JsonText json_;
  Part free_text_ = 0;
  Part beyond_ascii_ = 0;  // and free text behind it
};

}  // namespace

std::string TextOf(const ToolCalls& calls) {
  nlohmann::json functions = nlohmann::json::array();
  for (const ToolCalls::Function& function : calls.functions) {
    functions.push_back({function.name, function.parameters});
  }
  const nlohmann::json json = {{"form", static_cast<uint64_t>(calls.form)},
                               {"required", calls.required},
                               {"functions", std::move(functions)}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<Part> AddToolCalls(std::string_view text, GrammarBuilder& builder) {
  ASSIGN_OR_RETURN(const ToolCalls calls, Parse(text));
  return ToolCallGrammar(calls, builder).Make();
}

}  // namespace lockstep::grammar
