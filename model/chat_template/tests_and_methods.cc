// Jinja's tests, and the methods of Python's str, dict and list.
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/chat_template/filters.h"
#include "model/chat_template/operators.h"
#include "model/chat_template/text_operations.h"
#include "model/tokenizer/utf8.h"

namespace lockstep::jinja {
namespace {

using Result = absl::StatusOr<Value>;

struct NamedComparison {
  std::string_view test;
  std::string_view comparison;
};
constexpr NamedComparison kComparisons[] = {
    {"equalto", "=="}, {"eq", "=="}, {"==", "=="},      {"ne", "!="},
    {"!=", "!="},      {"lt", "<"},  {"<", "<"},        {"le", "<="},
    {"<=", "<="},      {"gt", ">"},  {">", ">"},        {"ge", ">="},
    {">=", ">="},      {"in", "in"}, {"lessthan", "<"}, {"greaterthan", ">"}};

bool HasCase(const MarkedText& text, Case wanted) {
  const bool has_letters = std::any_of(text.text().begin(), text.text().end(),
                                       [](char c) { return absl::ascii_isalpha(c); });
  return has_letters && WithCase(text, wanted).text() == text.text();
}

// Tests of the type and of the value itself; nullopt: it is another one.
std::optional<bool> IsOfKind(std::string_view name, const Value& input) {
  if (name == "defined") return !input.is_undefined();
  if (name == "undefined") return input.is_undefined();
  if (name == "none") return input.is_none();
  if (name == "string") return input.is_text();
  if (name == "number") return input.is_number();
  if (name == "integer") return input.is_int();
  if (name == "float") return input.is_float();
  if (name == "boolean") return input.is_bool();
  if (name == "true") return input.is_bool() && input.IsTrue();
  if (name == "false") return input.is_bool() && !input.IsTrue();
  if (name == "mapping") return input.dict() != nullptr && !input.dict()->is_namespace;
  if (name == "callable") return input.is_function() || input.is_undefined();  // as Jinja
  const bool is_sequence = input.is_text() || input.list() != nullptr || input.is_undefined() ||
                           (input.dict() != nullptr && !input.dict()->is_namespace);
  if (name == "iterable" || name == "sequence") return is_sequence;
  return std::nullopt;
}

absl::StatusOr<bool> TestNumber(std::string_view name, const Value& input,
                                ArgumentReader& arguments) {
  int64_t divisor = 2;
  if (name == "divisibleby") {
    ASSIGN_OR_RETURN(const std::optional<int64_t> given, arguments.NextInt("num"));
    divisor = given.value_or(0);
  }
  if (!input.is_int() && !input.is_bool()) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(name), " wants an integer"));
  }
  if (divisor == 0) return absl::InvalidArgumentError("division by zero");
  const bool is_divisible = divisor == -1 || input.AsInt() % divisor == 0;
  return is_divisible != (name == "odd");
}

constexpr std::string_view kTextMethods[] = {
    "strip", "lstrip",  "rstrip",  "split",      "rsplit",       "splitlines",   "startswith",
    "upper", "lower",   "title",   "capitalize", "replace",      "removeprefix", "endswith",
    "find",  "rfind",   "count",   "join",       "removesuffix", "isdigit",      "isalpha",
    "index", "isspace", "isupper", "islower",    "format"};
constexpr std::string_view kDictMethods[] = {"items", "keys", "values", "get"};
constexpr std::string_view kListMethods[] = {"index", "count"};

template <size_t N>
bool Has(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Result StripMethod(const MarkedText& text, std::string_view name, ArgumentReader& arguments) {
  ASSIGN_OR_RETURN(const std::optional<MarkedText> chars, arguments.NextText("chars"));
  const Side side = name == "lstrip" ? Side::kLeft : name == "rstrip" ? Side::kRight : Side::kBoth;
  const auto which = chars ? std::optional<std::string_view>(chars->text()) : std::nullopt;
  return Value::Of(Strip(text, side, which));
}

Result SplitMethod(const MarkedText& text, bool from_right, ArgumentReader& arguments,
                   WorkBudget& budget) {
  ASSIGN_OR_RETURN(const std::optional<MarkedText> separator, arguments.NextText("sep"));
  ASSIGN_OR_RETURN(const std::optional<int64_t> max_splits, arguments.NextInt("maxsplit"));
  if (separator && separator->size() == 0) return absl::InvalidArgumentError("empty separator");
  const auto by = separator ? std::optional<std::string_view>(separator->text()) : std::nullopt;
  List parts = Split(text, by, max_splits.value_or(-1), from_right);
  RETURN_IF_ERROR(budget.Take(static_cast<int64_t>(parts.size())));
  return Value::Of(std::move(parts));
}

// affix: a text, or a list of which one is enough.
Result HasAffix(const MarkedText& text, bool at_start, ArgumentReader& arguments) {
  const Value affix = arguments.NextOr("affix", Value());
  const List affixes = affix.list() != nullptr ? *affix.list() : List{affix};
  for (const Value& each : affixes) {
    if (!each.is_text()) return absl::InvalidArgumentError("an affix must be a string");
    const std::string& wanted = each.text()->text();
    const bool has =
        at_start ? absl::StartsWith(text.text(), wanted) : absl::EndsWith(text.text(), wanted);
    if (has) return Value::Of(true);
  }
  return Value::Of(false);
}

Result WithoutAffix(const MarkedText& text, bool at_start, ArgumentReader& arguments) {
  ASSIGN_OR_RETURN(const std::optional<MarkedText> affix, arguments.NextText("affix"));
  if (!affix) return absl::InvalidArgumentError("an affix must be a string");
  const size_t size = affix->size();
  if (at_start && absl::StartsWith(text.text(), affix->text())) {
    return Value::Of(text.Range(size, text.size()));
  }
  if (!at_start && absl::EndsWith(text.text(), affix->text())) {
    return Value::Of(text.Range(0, text.size() - size));
  }
  return Value::Of(text);
}

Result FindMethod(const MarkedText& text, std::string_view name, ArgumentReader& arguments) {
  ASSIGN_OR_RETURN(const std::optional<MarkedText> wanted, arguments.NextText("sub"));
  if (!wanted) return absl::InvalidArgumentError("must be a string");
  if (name == "count") {
    if (wanted->size() == 0) return Value::Of(NumCharacters(text.text()) + 1);
    const List parts = Split(text, wanted->text(), -1, /*from_right=*/false);
    return Value::Of(static_cast<int64_t>(parts.size()) - 1);
  }
  const int64_t at = Find(text, wanted->text(), name == "rfind");
  if (at < 0 && name == "index") return absl::InvalidArgumentError("substring not found");
  return Value::Of(at);
}

Result ReplaceMethod(const MarkedText& text, ArgumentReader& arguments, WorkBudget& budget) {
  ASSIGN_OR_RETURN(const std::optional<MarkedText> old, arguments.NextText("old"));
  ASSIGN_OR_RETURN(const std::optional<MarkedText> replacement, arguments.NextText("new"));
  ASSIGN_OR_RETURN(const std::optional<int64_t> count, arguments.NextInt("count"));
  if (!old || !replacement) return absl::InvalidArgumentError("replace wants two strings");
  ASSIGN_OR_RETURN(MarkedText replaced,
                   ReplaceIn(text, old->text(), *replacement, count.value_or(-1), budget));
  return Value::Of(std::move(replaced));
}

// "{}", "{0}" and "{name}", without a format of their own.
Result Format(const MarkedText& text, ArgumentReader& arguments, WorkBudget& budget) {
  const Arguments given = arguments.TakeRest();
  arguments = ArgumentReader({});
  const std::string& all = text.text();
  MarkedText formatted;
  size_t next = 0;  // argument of "{}"
  for (size_t at = 0; at < all.size();) {
    const size_t brace = std::min(all.find_first_of("{}", at), all.size());
    formatted.Append(text.Range(at, brace));
    RETURN_IF_ERROR(budget.TakeText(formatted.size()));
    if (brace == all.size()) break;
    if (brace + 1 < all.size() && all[brace + 1] == all[brace]) {  // "{{"
      formatted.Append(text.Range(brace, brace + 1));
      at = brace + 2;
      continue;
    }
    const size_t end = all.find('}', brace);
    if (all[brace] == '}' || end == std::string::npos) {
      return absl::InvalidArgumentError("a single brace in the format");
    }
    const std::string field = all.substr(brace + 1, end - brace - 1);
    size_t index = field.empty() ? next++ : given.positional.size();
    if (!field.empty() && !absl::SimpleAtoi(field, &index)) index = given.positional.size();
    const auto named = std::find_if(given.named.begin(), given.named.end(),
                                    [&](const auto& entry) { return entry.first == field; });
    if (index < given.positional.size()) {
      ASSIGN_OR_RETURN(const MarkedText text, ToText(given.positional[index], budget));
      formatted.Append(text);
    } else if (named != given.named.end()) {
      ASSIGN_OR_RETURN(const MarkedText text, ToText(named->second, budget));
      formatted.Append(text);
    } else {
      return absl::InvalidArgumentError(absl::StrCat("the format wants {", field, "}"));
    }
    at = end + 1;
  }
  return Value::Of(std::move(formatted));
}

bool IsOfCharacters(const MarkedText& text, std::string_view name) {
  if (name == "isupper") return HasCase(text, Case::kUpper);
  if (name == "islower") return HasCase(text, Case::kLower);
  if (name == "isspace") return text.size() > 0 && Strip(text, Side::kBoth, {}).size() == 0;
  return text.size() > 0 && std::all_of(text.text().begin(), text.text().end(), [&](char c) {
           return name == "isdigit" ? absl::ascii_isdigit(c) : absl::ascii_isalpha(c);
         });
}

Result CallTextMethod(const Value& object, std::string_view name, ArgumentReader& arguments,
                      WorkBudget& budget) {
  const MarkedText& text = *object.text();
  if (name.ends_with("strip")) {
    return StripMethod(text, name, arguments);
  }
  if (name == "split" || name == "rsplit") {
    return SplitMethod(text, name == "rsplit", arguments, budget);
  }
  if (name == "splitlines") {
    return Value::Of(SplitLines(text, arguments.NextOr("keepends", Value::Of(false)).IsTrue()));
  }
  if (name == "startswith" || name == "endswith") {
    return HasAffix(text, name == "startswith", arguments);
  }
  if (name == "removeprefix" || name == "removesuffix") {
    return WithoutAffix(text, name == "removeprefix", arguments);
  }
  if (name == "find" || name == "rfind" || name == "index" || name == "count") {
    return FindMethod(text, name, arguments);
  }
  if (name == "replace") return ReplaceMethod(text, arguments, budget);
  if (name == "join") {
    const Value list = arguments.NextOr("iterable", Value());
    return ApplyFilter("join", list, {.positional = {object}, .named = {}}, budget);
  }
  if (name == "upper") return Value::Of(WithCase(text, Case::kUpper));
  if (name == "lower") return Value::Of(WithCase(text, Case::kLower));
  if (name == "title") return Value::Of(WithCase(text, Case::kTitle));
  if (name == "capitalize") return Value::Of(WithCase(text, Case::kCapitalized));
  if (name == "format") return Format(text, arguments, budget);
  return Value::Of(IsOfCharacters(text, name));
}

Result CallDictMethod(const Value& object, std::string_view name, ArgumentReader& arguments,
                      WorkBudget& budget) {
  if (name == "get") {
    const Value key = arguments.NextOr("key", Value());
    const Value otherwise = arguments.NextOr("default", Value::OfNone());
    ASSIGN_OR_RETURN(Value found, Item(object, key, budget));
    return found.is_undefined() ? otherwise : found;
  }
  if (name == "items") return ApplyFilter("items", object, {}, budget);
  List list;
  for (const auto& [key, entry] : object.dict()->entries) {
    list.push_back(name == "keys" ? Value::Of(key) : entry);
  }
  RETURN_IF_ERROR(budget.Take(static_cast<int64_t>(list.size())));
  return Value::Of(std::move(list));
}

Result CallListMethod(const Value& object, std::string_view name, ArgumentReader& arguments,
                      WorkBudget& budget) {
  const Value wanted = arguments.NextOr("value", Value());
  const List& list = *object.list();
  RETURN_IF_ERROR(budget.TakeComparisons(list.size(), wanted.weight()));
  const auto is_wanted = [&](const Value& entry) { return Equal(entry, wanted); };
  if (name == "count") {
    return Value::Of(static_cast<int64_t>(std::count_if(list.begin(), list.end(), is_wanted)));
  }
  const auto found = std::find_if(list.begin(), list.end(), is_wanted);
  if (found == list.end()) return absl::InvalidArgumentError("it is not in the list");
  return Value::Of(static_cast<int64_t>(found - list.begin()));
}

}  // namespace

absl::StatusOr<bool> ApplyTest(std::string_view name, const Value& input, Arguments arguments,
                               WorkBudget& budget) {
  RETURN_IF_ERROR(budget.Take(1));
  ArgumentReader reader(std::move(arguments));
  absl::StatusOr<bool> passes = false;
  if (const std::optional<bool> is_kind = IsOfKind(name, input)) {
    passes = *is_kind;
  } else if (name == "lower" || name == "upper") {
    ASSIGN_OR_RETURN(const MarkedText text, ToText(input, budget));
    passes = HasCase(text, name == "lower" ? Case::kLower : Case::kUpper);
  } else if (name == "even" || name == "odd" || name == "divisibleby") {
    passes = TestNumber(name, input, reader);
  } else {
    const auto comparison =
        std::find_if(std::begin(kComparisons), std::end(kComparisons),
                     [&](const NamedComparison& each) { return each.test == name; });
    if (comparison == std::end(kComparisons)) {
      return absl::InvalidArgumentError(absl::StrCat("there is no test ", std::string(name)));
    }
    const std::optional<Value> other = reader.Next("other");
    if (!other)
      return absl::InvalidArgumentError(absl::StrCat(std::string(name), " wants one more"));
    passes = Compare(comparison->comparison, input, *other, budget);
  }
  RETURN_IF_ERROR(passes.status());
  RETURN_IF_ERROR(reader.Finish());
  return passes;
}

bool IsMethod(const Value& object, std::string_view name) {
  if (object.is_text()) return Has(kTextMethods, name);
  if (object.list() != nullptr) return Has(kListMethods, name);
  return object.dict() != nullptr && !object.dict()->is_namespace && Has(kDictMethods, name);
}

absl::StatusOr<Value> CallMethod(const Value& object, std::string_view name, Arguments arguments,
                                 WorkBudget& budget) {
  RETURN_IF_ERROR(budget.TakeText(object.is_text() ? object.text()->size() : 0));
  ArgumentReader reader(std::move(arguments));
  Result result = object.is_text()           ? CallTextMethod(object, name, reader, budget)
                  : object.list() != nullptr ? CallListMethod(object, name, reader, budget)
                                             : CallDictMethod(object, name, reader, budget);
  RETURN_IF_ERROR(result.status());
  if (const absl::Status rest = reader.Finish(); !rest.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(name), "() ", rest.message()));
  }
  if (result->is_text()) RETURN_IF_ERROR(budget.TakeText(result->text()->size()));
  return result;
}

absl::StatusOr<Value> Attribute(const Value& object, std::string_view name, WorkBudget& budget) {
  if (object.is_undefined()) return UndefinedError(object);
  if (object.dict() == nullptr) return Value::OfUndefined(std::string(name));
  return Item(object, Value::Markup(name), budget);
}

}  // namespace lockstep::jinja
