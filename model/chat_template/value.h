// What expressions of a chat template evaluate to: Python's values as Jinja shows them. Copies are
// cheap: text, lists and dicts are shared.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "model/chat_template/marked_text.h"
#include "model/chat_template/work_budget.h"
#include "nlohmann/json.hpp"

namespace lockstep::jinja {

class Value;
struct Macro;  // interpreter.h

struct Undefined {
  std::string name;  // for errors
};
struct None {};
struct Function {
  std::string name;              // of a global
  const Macro* macro = nullptr;  // or one of the template's own
};

using List = std::vector<Value>;
// In the order of insertion, as Python has it.
struct Dict {
  std::vector<std::pair<MarkedText, Value>> entries;
  bool is_namespace = false;  // whose entries `set` may replace

  const Value* Find(std::string_view key) const;
  void Set(MarkedText key, Value value);
};

class Value {
 public:
  Value() = default;  // undefined
  static Value OfUndefined(std::string name) { return Value(Undefined{std::move(name)}); }
  static Value OfNone() { return Value(None{}); }
  static Value Of(bool value) { return Value(value); }
  static Value Of(int64_t value) { return Value(value); }
  static Value Of(double value) { return Value(value); }
  static Value Of(MarkedText text);
  static Value Of(List list, bool is_tuple = false);
  static Value Of(Dict dict);
  static Value Of(Function function) { return Value(std::move(function)); }
  static Value Markup(std::string_view text) { return Of(MarkedText(std::string(text), true)); }
  // Texts and keys are the input's. Integers that do not fit 64 bits become floating point.
  static Value OfJson(const nlohmann::ordered_json& json);

  bool is_undefined() const { return Is<Undefined>(); }
  bool is_none() const { return Is<None>(); }
  bool is_bool() const { return Is<bool>(); }
  bool is_int() const { return Is<int64_t>(); }
  bool is_float() const { return Is<double>(); }
  bool is_number() const { return is_int() || is_float() || is_bool(); }
  bool is_text() const { return text() != nullptr; }
  bool is_function() const { return Is<Function>(); }

  // Null when it is none.
  const MarkedText* text() const { return Pointer<const MarkedText>(); }
  const List* list() const { return Pointer<const List>(); }
  const Dict* dict() const { return Pointer<const Dict>(); }
  Dict* mutable_dict() const;
  const Function* function() const { return std::get_if<Function>(&value_); }
  const Undefined& undefined() const { return std::get<Undefined>(value_); }
  int64_t AsInt() const;         // of an integer or a bool
  double AsFloat() const;        // of a number
  bool IsTrue() const;           // as Python's bool()
  const char* TypeName() const;  // Python's
  // Of lists and dicts in each other; 0: neither. What is in a namespace does not count.
  int depth() const { return depth_; }
  // About the bytes that it is written with, of what it holds as often as it does.
  size_t weight() const { return weight_; }
  bool is_tuple() const { return is_tuple_; }  // a list that Python shows in parentheses
  // Is one, or has one within: such a value in a namespace could contain itself.
  bool holds_namespace() const { return holds_namespace_; }

 private:
  static constexpr size_t kOwnWeight = 16;
  static constexpr size_t kMaxWeight = SIZE_MAX / 2;

  template <typename T>
  explicit Value(T value) : value_(std::move(value)) {}
  template <typename T>
  bool Is() const {
    return std::holds_alternative<T>(value_);
  }
  void Hold(const Value& inner);
  template <typename T>
  T* Pointer() const {
    const auto* shared = std::get_if<std::shared_ptr<std::remove_const_t<T>>>(&value_);
    return shared == nullptr ? nullptr : shared->get();
  }

  // Shared among copies of one value; none but a namespace changes.
  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<MarkedText>,
               std::shared_ptr<List>, std::shared_ptr<Dict>, Function>
      value_;
  int depth_ = 0;
  size_t weight_ = kOwnWeight;
  bool holds_namespace_ = false;
  bool is_tuple_ = false;
};

// As Python's == (1 == 1.0 == True). Who calls it takes of the budget first, by weights.
bool Equal(const Value& a, const Value& b);
// As Python's str(); of text inside of lists and dicts its repr().
absl::StatusOr<MarkedText> ToText(const Value& value, WorkBudget& budget);
// As Python's repr() of a float.
std::string FloatText(double value);

struct JsonStyle {
  int indent = -1;  // < 0: all on one line
  bool sorts_keys = false;
  bool ascii = false;               // escapes all other characters
  std::string item_separator = "";  // "": Python's
  std::string key_separator = "";
};
// As Python's json.dumps with ensure_ascii=False: what transformers makes of `tojson`. Undefined
// values are null.
std::string ToJson(const Value& value, const JsonStyle& style);

}  // namespace lockstep::jinja
