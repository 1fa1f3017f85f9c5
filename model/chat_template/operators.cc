#include "model/chat_template/operators.h"

#include <cmath>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/chat_template/text_operations.h"
#include "model/tokenizer/utf8.h"

namespace lockstep::jinja {
namespace {

constexpr int64_t kMaxEntries = 1'000'000;  // of a list that is made

absl::Status NoOperator(std::string_view name, const Value& a, const Value& b) {
  if (a.is_undefined()) return UndefinedError(a);
  if (b.is_undefined()) return UndefinedError(b);
  return absl::InvalidArgumentError(absl::StrCat("unsupported operand types for ",
                                                 std::string(name), ": '", a.TypeName(), "' and '",
                                                 b.TypeName(), "'"));
}

absl::Status TooLarge() { return absl::InvalidArgumentError("an integer does not fit 64 bits"); }
absl::Status ByZero() { return absl::InvalidArgumentError("division by zero"); }

absl::StatusOr<Value> IntegerPower(int64_t base, int64_t exponent) {
  int64_t result = 1;
  if (base == 0 || base == 1 || base == -1) {
    return Value::Of(exponent == 0 ? int64_t{1} : base == -1 && exponent % 2 == 0 ? 1 : base);
  }
  for (int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) return TooLarge();
  }
  return Value::Of(result);
}

absl::StatusOr<Value> IntegerArithmetic(std::string_view name, int64_t a, int64_t b) {
  if (name == "+" || name == "-" || name == "*") {
    int64_t result = 0;
    const bool overflows = name == "+"   ? __builtin_add_overflow(a, b, &result)
                           : name == "-" ? __builtin_sub_overflow(a, b, &result)
                                         : __builtin_mul_overflow(a, b, &result);
    if (overflows) return TooLarge();
    return Value::Of(result);
  }
  if (b == 0) return ByZero();
  if (name == "/") return Value::Of(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) return IntegerArithmetic("*", name == "%" ? 0 : a, b);  // may overflow in C
  const bool rounds_up = a % b != 0 && (a < 0) != (b < 0);  // C's division does, Python's never
  if (name == "//") return Value::Of(a / b - (rounds_up ? 1 : 0));
  return Value::Of(a % b + (rounds_up ? b : 0));
}

absl::StatusOr<Value> FloatArithmetic(std::string_view name, double a, double b) {
  if (name == "+") return Value::Of(a + b);
  if (name == "-") return Value::Of(a - b);
  if (name == "*") return Value::Of(a * b);
  if (name == "**") return Value::Of(std::pow(a, b));
  if (b == 0) return ByZero();
  if (name == "/") return Value::Of(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (name == "%") return Value::Of(rest == 0 ? std::copysign(0.0, b) : rest);
  const double quotient = (a - rest) / b;
  return Value::Of(std::round(quotient));
}

MarkedText Characters(const MarkedText& text, int64_t first, int64_t last) {
  return text.Range(CharacterOffset(text.text(), first), CharacterOffset(text.text(), last));
}

absl::StatusOr<Value> Concatenate(const MarkedText& a, const MarkedText& b, WorkBudget& budget) {
  RETURN_IF_ERROR(budget.TakeText(a.size() + b.size()));
  MarkedText both = a;
  both.Append(b);
  return Value::Of(std::move(both));
}

// text * times and list * times
absl::StatusOr<Value> Repeat(const Value& value, int64_t times, WorkBudget& budget) {
  times = std::max<int64_t>(times, 0);
  const size_t size = value.is_text() ? value.text()->size() : value.list()->size();
  const auto most = static_cast<int64_t>(value.is_text() ? WorkBudget::kMaxTextBytes : kMaxEntries);
  if (size > 0 && times > most / static_cast<int64_t>(size)) {
    return absl::ResourceExhaustedError(absl::StrCat("* ", times, " makes it too large"));
  }
  RETURN_IF_ERROR(budget.TakeText(size * static_cast<size_t>(times)));
  MarkedText text;
  List list;
  for (int64_t i = 0; size > 0 && i < times; ++i) {
    if (value.is_text()) {
      text.Append(*value.text());
    } else {
      list.insert(list.end(), value.list()->begin(), value.list()->end());
    }
  }
  return value.is_text() ? Value::Of(std::move(text))
                         : Value::Of(std::move(list), value.is_tuple());
}

absl::StatusOr<Value> Join(const Value& x, const Value& y, WorkBudget& budget) {
  if (x.is_tuple() != y.is_tuple()) return NoOperator("+", x, y);
  const List& a = *x.list();
  const List& b = *y.list();
  if (a.size() + b.size() > kMaxEntries) return absl::ResourceExhaustedError("a list is too long");
  RETURN_IF_ERROR(budget.Take(static_cast<int64_t>(a.size() + b.size())));
  List both = a;
  both.insert(both.end(), b.begin(), b.end());
  return Value::Of(std::move(both), x.is_tuple());
}

absl::StatusOr<int> Order(std::string_view name, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) {
      return a.AsFloat() < b.AsFloat() ? -1 : a.AsFloat() > b.AsFloat() ? 1 : 0;
    }
    return a.AsInt() < b.AsInt() ? -1 : a.AsInt() > b.AsInt() ? 1 : 0;
  }
  if (a.is_text() && b.is_text()) return a.text()->text().compare(b.text()->text());
  if (a.list() == nullptr || b.list() == nullptr) return NoOperator(name, a, b);
  const List& x = *a.list();
  const List& y = *b.list();
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (Equal(x[i], y[i])) continue;
    return Order(name, x[i], y[i]);
  }
  return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
}

absl::StatusOr<bool> Contains(const Value& value, const Value& wanted, WorkBudget& budget) {
  if (value.is_text()) {
    if (!wanted.is_text()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'in <string>' requires string as left operand, not ", wanted.TypeName()));
    }
    RETURN_IF_ERROR(budget.TakeText(value.text()->size()));
    return absl::StrContains(value.text()->text(), wanted.text()->text());
  }
  if (value.list() != nullptr) {
    RETURN_IF_ERROR(budget.TakeComparisons(value.list()->size(), wanted.weight()));
    return std::any_of(value.list()->begin(), value.list()->end(),
                       [&](const Value& entry) { return Equal(entry, wanted); });
  }
  if (value.dict() != nullptr) {
    RETURN_IF_ERROR(budget.Take(static_cast<int64_t>(value.dict()->entries.size())));
    return wanted.is_text() && value.dict()->Find(wanted.text()->text()) != nullptr;
  }
  if (value.is_undefined()) return false;
  return absl::InvalidArgumentError(
      absl::StrCat("argument of type '", value.TypeName(), "' is not iterable"));
}

}  // namespace

absl::Status UndefinedError(const Value& value) {
  return absl::InvalidArgumentError(absl::StrCat("'", value.undefined().name, "' is undefined"));
}

absl::StatusOr<Value> Arithmetic(std::string_view name, const Value& a, const Value& b,
                                 WorkBudget& budget) {
  if (name == "~") {
    ASSIGN_OR_RETURN(const MarkedText first, ToText(a, budget));
    ASSIGN_OR_RETURN(const MarkedText second, ToText(b, budget));
    return Concatenate(first, second, budget);
  }
  if (a.is_number() && b.is_number()) {
    const bool is_float = a.is_float() || b.is_float();
    if (!is_float && name == "**" && b.AsInt() >= 0) return IntegerPower(a.AsInt(), b.AsInt());
    if (is_float || name == "**") {
      if (name == "**" && a.AsFloat() == 0 && b.AsFloat() < 0) return ByZero();
      return FloatArithmetic(name, a.AsFloat(), b.AsFloat());
    }
    return IntegerArithmetic(name, a.AsInt(), b.AsInt());
  }
  const bool a_repeats = a.is_text() || a.list() != nullptr;
  const bool b_repeats = b.is_text() || b.list() != nullptr;
  if (name == "*" && a_repeats && (b.is_int() || b.is_bool())) return Repeat(a, b.AsInt(), budget);
  if (name == "*" && b_repeats && (a.is_int() || a.is_bool())) return Repeat(b, a.AsInt(), budget);
  if (name == "+" && a.is_text() && b.is_text()) return Concatenate(*a.text(), *b.text(), budget);
  if (name == "+" && a.list() != nullptr && b.list() != nullptr) {
    return Join(a, b, budget);
  }
  return NoOperator(name, a, b);
}

absl::StatusOr<Value> Negative(const Value& value) {
  if (value.is_float()) return Value::Of(-value.AsFloat());
  if (!value.is_number()) {
    if (value.is_undefined()) return UndefinedError(value);
    return absl::InvalidArgumentError(
        absl::StrCat("bad operand type for unary -: '", value.TypeName(), "'"));
  }
  if (value.AsInt() == std::numeric_limits<int64_t>::min()) return TooLarge();
  return Value::Of(-value.AsInt());
}

absl::StatusOr<bool> Compare(std::string_view name, const Value& a, const Value& b,
                             WorkBudget& budget) {
  RETURN_IF_ERROR(budget.TakeText(std::min(a.weight(), b.weight())));
  if (name == "==") return Equal(a, b);
  if (name == "!=") return !Equal(a, b);
  if (name == "in") return Contains(b, a, budget);
  if (name == "not in") {
    ASSIGN_OR_RETURN(const bool contains, Contains(b, a, budget));
    return !contains;
  }
  ASSIGN_OR_RETURN(const int order, Order(name, a, b));
  if (name == "<") return order < 0;
  if (name == "<=") return order <= 0;
  return name == ">" ? order > 0 : order >= 0;
}

namespace {

absl::StatusOr<Value> NoItem(const Value& key, WorkBudget& budget) {
  ASSIGN_OR_RETURN(const MarkedText name, ToText(key, budget));
  return Value::OfUndefined(name.text());
}

}  // namespace

absl::StatusOr<Value> Item(const Value& value, const Value& key, WorkBudget& budget) {
  if (value.is_undefined()) return UndefinedError(value);
  if (value.dict() != nullptr) {
    RETURN_IF_ERROR(budget.Take(1 + static_cast<int64_t>(value.dict()->entries.size() / 16)));
    const Value* found = key.is_text() ? value.dict()->Find(key.text()->text()) : nullptr;
    if (found != nullptr) return *found;
    return NoItem(key, budget);
  }
  if ((value.list() == nullptr && !value.is_text()) || !(key.is_int() || key.is_bool())) {
    return NoItem(key, budget);
  }
  RETURN_IF_ERROR(budget.TakeText(value.is_text() ? value.text()->size() : 0));
  const int64_t num = value.is_text() ? NumCharacters(value.text()->text())
                                      : static_cast<int64_t>(value.list()->size());
  const int64_t index = key.AsInt() < 0 ? key.AsInt() + num : key.AsInt();
  if (index < 0 || index >= num) return Value::OfUndefined(absl::StrCat(key.AsInt()));
  if (value.is_text()) return Value::Of(Characters(*value.text(), index, index + 1));
  return (*value.list())[static_cast<size_t>(index)];
}

absl::StatusOr<Value> Slice(const Value& value, const Value& start, const Value& stop,
                            const Value& step, WorkBudget& budget) {
  if (value.is_undefined()) return UndefinedError(value);
  if (value.list() == nullptr && !value.is_text()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", value.TypeName(), "' object is not subscriptable"));
  }
  SliceBounds bounds;
  const auto read = [](const Value& bound, std::optional<int64_t>& to) {
    if (bound.is_int() || bound.is_bool()) to = bound.AsInt();
    return to.has_value() || bound.is_none();
  };
  std::optional<int64_t> given_step;
  if (!read(start, bounds.start) || !read(stop, bounds.stop) || !read(step, given_step)) {
    return absl::InvalidArgumentError("slice indices must be integers or None");
  }
  bounds.step = given_step.value_or(1);
  if (bounds.step == 0) return absl::InvalidArgumentError("slice step cannot be zero");
  if (value.is_text() && bounds.step == 1) {
    RETURN_IF_ERROR(budget.TakeText(value.text()->size()));
    const SliceRange range = Resolve(bounds, NumCharacters(value.text()->text()));
    return Value::Of(Characters(*value.text(), range.start, std::max(range.start, range.stop)));
  }
  ASSIGN_OR_RETURN(const List all, Iterate(value, budget));
  List part;
  MarkedText text;
  const auto [first, last] = Resolve(bounds, static_cast<int64_t>(all.size()));
  for (int64_t i = first; bounds.step > 0 ? i < last : i > last;) {
    const Value& entry = all[static_cast<size_t>(i)];
    if (value.is_text()) {
      text.Append(*entry.text());
    } else {
      part.push_back(entry);
    }
    if (__builtin_add_overflow(i, bounds.step, &i)) break;
  }
  return value.is_text() ? Value::Of(std::move(text))
                         : Value::Of(std::move(part), value.is_tuple());
}

absl::StatusOr<List> Iterate(const Value& value, WorkBudget& budget) {
  if (value.list() != nullptr) {
    RETURN_IF_ERROR(budget.Take(1 + static_cast<int64_t>(value.list()->size() / 4)));
    return *value.list();
  }
  if (value.is_text()) {
    if (value.text()->size() > kMaxEntries) {
      return absl::ResourceExhaustedError("a text is too long to go over its characters");
    }
    RETURN_IF_ERROR(budget.Take(static_cast<int64_t>(value.text()->size())));
    return Characters(*value.text());
  }
  if (value.dict() != nullptr && !value.dict()->is_namespace) {
    RETURN_IF_ERROR(budget.Take(static_cast<int64_t>(value.dict()->entries.size())));
    List keys;
    for (const auto& [key, entry] : value.dict()->entries) keys.push_back(Value::Of(key));
    return keys;
  }
  if (value.is_undefined()) return List();
  return absl::InvalidArgumentError(
      absl::StrCat("'", value.TypeName(), "' object is not iterable"));
}

}  // namespace lockstep::jinja
