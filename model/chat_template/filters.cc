#include "model/chat_template/filters.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "model/chat_template/operators.h"
#include "model/chat_template/text_operations.h"
#include "model/tokenizer/utf8.h"

namespace lockstep::jinja {
namespace {

using Result = absl::StatusOr<Value>;

absl::Status NoJson(const Value& value) {
  return absl::InvalidArgumentError(
      absl::StrCat("Object of type ", value.TypeName(), " is not JSON serializable"));
}

// Whether there is JSON of a value, and room for it: indents make much of little.
class JsonCheck {
 public:
  JsonCheck(const JsonStyle& style, WorkBudget& budget) : style_(style), budget_(budget) {}

  absl::Status Check(const Value& value, int depth) {
    if (value.is_undefined() || value.is_function()) return NoJson(value);
    RETURN_IF_ERROR(Add(value.is_text() ? value.text()->size() : 0, depth));
    if (value.list() != nullptr) {
      for (const Value& entry : *value.list()) RETURN_IF_ERROR(Check(entry, depth + 1));
    }
    if (value.dict() != nullptr) {
      if (value.dict()->is_namespace) return NoJson(value);
      for (const auto& [key, entry] : value.dict()->entries) {
        RETURN_IF_ERROR(Add(key.size(), 0));
        RETURN_IF_ERROR(Check(entry, depth + 1));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Add(size_t text_bytes, int depth) {
    const auto indent = static_cast<size_t>(std::max(style_.indent, 0) * depth);
    const size_t num_bytes =
        text_bytes + indent + style_.item_separator.size() + style_.key_separator.size();
    num_bytes_ += num_bytes;
    RETURN_IF_ERROR(budget_.TakeText(num_bytes));
    return num_bytes_ <= WorkBudget::kMaxTextBytes ? absl::OkStatus()
                                                   : budget_.TakeText(num_bytes_);
  }

  const JsonStyle& style_;
  WorkBudget& budget_;
  size_t num_bytes_ = 0;
};

Result Tojson(const Value& input, ArgumentReader& arguments, WorkBudget& budget) {
  JsonStyle style;
  // transformers' order: ensure_ascii, indent, separators, sort_keys; Jinja's own has indent first.
  const Value ascii = arguments.NextOr("ensure_ascii", Value::Of(false));
  style.ascii = ascii.is_bool() && ascii.IsTrue();
  if (ascii.is_int()) {
    style.indent = static_cast<int>(std::clamp<int64_t>(ascii.AsInt(), 0, 64));
  } else {
    ASSIGN_OR_RETURN(const std::optional<int64_t> indent, arguments.NextInt("indent"));
    if (indent) style.indent = static_cast<int>(std::clamp<int64_t>(*indent, 0, 64));
  }
  const Value separators = arguments.NextOr("separators", Value::OfNone());
  if (separators.list() != nullptr && separators.list()->size() == 2) {
    ASSIGN_OR_RETURN(const MarkedText item, ToText((*separators.list())[0], budget));
    ASSIGN_OR_RETURN(const MarkedText key, ToText((*separators.list())[1], budget));
    style.item_separator = item.text();
    style.key_separator = key.text();
  }
  style.sorts_keys = arguments.NextOr("sort_keys", Value::Of(false)).IsTrue();
  RETURN_IF_ERROR(JsonCheck(style, budget).Check(input, 0));
  return Value::Of(MarkedText(ToJson(input, style), /*is_markup=*/false));
}

Result Length(const Value& input) {
  if (input.is_text()) return Value::Of(NumCharacters(input.text()->text()));
  if (input.list() != nullptr) return Value::Of(static_cast<int64_t>(input.list()->size()));
  if (input.dict() != nullptr && !input.dict()->is_namespace) {
    return Value::Of(static_cast<int64_t>(input.dict()->entries.size()));
  }
  if (input.is_undefined()) return Value::Of(int64_t{0});
  return absl::InvalidArgumentError(
      absl::StrCat("object of type '", input.TypeName(), "' has no len()"));
}

Result Items(const Value& input) {
  List items;
  if (input.is_undefined()) return Value::Of(std::move(items));
  if (input.dict() == nullptr) {
    return absl::InvalidArgumentError("Can only get item pairs from a mapping.");
  }
  for (const auto& [key, entry] : input.dict()->entries) {
    items.push_back(Value::Of(List{Value::Of(key), entry}, /*is_tuple=*/true));
  }
  return Value::Of(std::move(items));
}

Result Default(const Value& input, ArgumentReader& arguments) {
  const Value otherwise = arguments.NextOr("default_value", Value::Markup(""));
  const bool for_false = arguments.NextOr("boolean", Value::Of(false)).IsTrue();
  return input.is_undefined() || (for_false && !input.IsTrue()) ? otherwise : input;
}

Result ToInt(const Value& input, ArgumentReader& arguments) {
  const Value otherwise = arguments.NextOr("default", Value::Of(int64_t{0}));
  int64_t value = 0;
  if (input.is_int() || input.is_bool()) return Value::Of(input.AsInt());
  if (input.is_float() && std::fabs(input.AsFloat()) < 9e18) {
    return Value::Of(static_cast<int64_t>(input.AsFloat()));
  }
  if (!input.is_text()) return otherwise;
  if (absl::SimpleAtoi(input.text()->text(), &value)) return Value::Of(value);
  double real = 0;
  const bool is_number = absl::SimpleAtod(input.text()->text(), &real) && std::fabs(real) < 9e18;
  return is_number ? Value::Of(static_cast<int64_t>(real)) : otherwise;
}

Result ToFloat(const Value& input, ArgumentReader& arguments) {
  const Value otherwise = arguments.NextOr("default", Value::Of(0.0));
  if (input.is_number()) return Value::Of(input.AsFloat());
  double value = 0;
  const bool is_number = input.is_text() && absl::SimpleAtod(input.text()->text(), &value);
  return is_number ? Value::Of(value) : otherwise;
}

// As Python: of the decimal that is nearest to the number as it is stored.
Result Round(const Value& input, ArgumentReader& arguments) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> precision, arguments.NextInt("precision"));
  ASSIGN_OR_RETURN(const std::optional<MarkedText> method, arguments.NextText("method"));
  if (!input.is_number()) return absl::InvalidArgumentError("round wants a number");
  const double scale = std::pow(10.0, static_cast<double>(precision.value_or(0)));
  const double scaled = input.AsFloat() * scale;
  const std::string how = method ? method->text() : "common";
  if (how == "ceil") return Value::Of(std::ceil(scaled) / scale);
  if (how == "floor") return Value::Of(std::floor(scaled) / scale);
  if (input.is_int() && how == "common") return input;
  double rounded = std::nearbyint(scaled) / scale;
  const int64_t digits = precision.value_or(0);
  if (digits > 0 && digits <= 15) {
    const std::string decimal = absl::StrFormat("%.*f", static_cast<int>(digits), input.AsFloat());
    if (!absl::SimpleAtod(decimal, &rounded)) return input;
  }
  return Value::Of(rounded);
}

Result Indent(const Value& input, ArgumentReader& arguments, WorkBudget& budget) {
  const Value width = arguments.NextOr("width", Value::Of(int64_t{4}));
  const bool first = arguments.NextOr("first", Value::Of(false)).IsTrue();
  const bool blank = arguments.NextOr("blank", Value::Of(false)).IsTrue();
  const MarkedText space =
      width.is_text()
          ? *width.text()
          : MarkedText(
                std::string(std::clamp<int64_t>(width.is_number() ? width.AsInt() : 4, 0, 64), ' '),
                /*is_markup=*/true);
  ASSIGN_OR_RETURN(const MarkedText text, ToText(input, budget));
  const MarkedText line_end("\n", /*is_markup=*/true);
  MarkedText ended = text;
  ended.Append(line_end);  // so that a last empty line is one
  const List lines = SplitLines(ended, /*keeps_ends=*/false);
  MarkedText indented;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) indented.Append(line_end);
    const bool is_indented = i == 0 ? first : blank || lines[i].text()->size() > 0;
    if (is_indented) indented.Append(space);
    indented.Append(*lines[i].text());
    RETURN_IF_ERROR(budget.TakeText(lines[i].text()->size() + space.size()));
    if (indented.size() > WorkBudget::kMaxTextBytes) return budget.TakeText(indented.size());
  }
  return Value::Of(std::move(indented));
}

Result Trim(const Value& input, ArgumentReader& arguments, WorkBudget& budget) {
  ASSIGN_OR_RETURN(const std::optional<MarkedText> chars, arguments.NextText("chars"));
  const auto which = chars ? std::optional<std::string_view>(chars->text()) : std::nullopt;
  ASSIGN_OR_RETURN(const MarkedText text, ToText(input, budget));
  return Value::Of(Strip(text, Side::kBoth, which));
}

Result Replace(const Value& input, ArgumentReader& arguments, WorkBudget& budget) {
  const Value old = arguments.NextOr("old", Value());
  const Value replacement = arguments.NextOr("new", Value());
  ASSIGN_OR_RETURN(const std::optional<int64_t> count, arguments.NextInt("count"));
  ASSIGN_OR_RETURN(const MarkedText text, ToText(input, budget));
  ASSIGN_OR_RETURN(const MarkedText old_text, ToText(old, budget));
  ASSIGN_OR_RETURN(const MarkedText new_text, ToText(replacement, budget));
  ASSIGN_OR_RETURN(MarkedText replaced,
                   ReplaceIn(text, old_text.text(), new_text, count.value_or(-1), budget));
  return Value::Of(std::move(replaced));
}

Result Abs(const Value& input) {
  if (input.is_float()) return Value::Of(std::fabs(input.AsFloat()));
  if (!input.is_number()) return absl::InvalidArgumentError("abs wants a number");
  return input.AsInt() < 0 ? Negative(input) : Value::Of(input.AsInt());
}

Result Cased(const Value& input, Case wanted, WorkBudget& budget) {
  ASSIGN_OR_RETURN(const MarkedText text, ToText(input, budget));
  return Value::Of(WithCase(text, wanted));
}

Result String(const Value& input, WorkBudget& budget) {
  ASSIGN_OR_RETURN(MarkedText text, ToText(input, budget));
  return Value::Of(std::move(text));
}

// What takes nothing but its input.
std::optional<Result> ApplySimple(std::string_view name, const Value& input, WorkBudget& budget) {
  if (name == "length" || name == "count") return Length(input);
  if (name == "upper") return Cased(input, Case::kUpper, budget);
  if (name == "lower") return Cased(input, Case::kLower, budget);
  if (name == "title") return Cased(input, Case::kWordBegins, budget);
  if (name == "capitalize") return Cased(input, Case::kCapitalized, budget);
  if (name == "items") return Items(input);
  if (name == "string") return String(input, budget);
  if (name == "safe") return input.is_text() ? input : String(input, budget);
  if (name == "abs") return Abs(input);
  return std::nullopt;
}

Result ApplyWithArguments(std::string_view name, const Value& input, ArgumentReader& arguments,
                          WorkBudget& budget) {
  if (name == "trim") return Trim(input, arguments, budget);
  if (name == "tojson") return Tojson(input, arguments, budget);
  if (name == "default" || name == "d") return Default(input, arguments);
  if (name == "replace") return Replace(input, arguments, budget);
  if (name == "int") return ToInt(input, arguments);
  if (name == "float") return ToFloat(input, arguments);
  if (name == "round") return Round(input, arguments);
  if (name == "indent") return Indent(input, arguments, budget);
  if (IsListFilter(name)) return ApplyListFilter(name, input, arguments, budget);
  return absl::InvalidArgumentError(absl::StrCat("there is no filter ", std::string(name)));
}

}  // namespace

absl::StatusOr<Value> ApplyFilter(std::string_view name, const Value& input, Arguments arguments,
                                  WorkBudget& budget) {
  RETURN_IF_ERROR(budget.TakeText(input.is_text() ? input.text()->size() : 0));
  ArgumentReader reader(std::move(arguments));
  std::optional<Result> simple = ApplySimple(name, input, budget);
  Result result = simple ? *std::move(simple) : ApplyWithArguments(name, input, reader, budget);
  RETURN_IF_ERROR(result.status());
  if (const absl::Status rest = reader.Finish(); !rest.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(name), " ", rest.message()));
  }
  if (result->is_text()) RETURN_IF_ERROR(budget.TakeText(result->text()->size()));
  return result;
}

}  // namespace lockstep::jinja
