// The interpreter's expressions.
#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/chat_template/filters.h"
#include "model/chat_template/interpreter.h"
#include "model/chat_template/lexer.h"
#include "model/chat_template/operators.h"

namespace lockstep::jinja {
namespace {

constexpr std::string_view kGlobals[] = {"raise_exception", "strftime_now", "namespace", "range",
                                         "dict"};

// Errors of Python's operations get the line; what the template raises itself stays as it is.
absl::Status AtLine(const Expression& expression, const absl::Status& status) {
  if (status.code() != absl::StatusCode::kInvalidArgument) return status;
  return TemplateError(expression.line, status.message());
}

template <typename T>
absl::StatusOr<Value> AtLine(const Expression& expression, absl::StatusOr<T> result) {
  if (!result.ok()) return AtLine(expression, result.status());
  if constexpr (std::is_same_v<T, bool>) {
    return Value::Of(*result);
  } else {
    return result;
  }
}

absl::StatusOr<Value> Shallow(const Expression& expression, Value value) {
  if (value.depth() <= kMaxValueDepth) return value;
  return TemplateError(expression.line, "values nest too deeply");
}

}  // namespace

absl::StatusOr<Value> Interpreter::Evaluate(const Expression& expression) {
  RETURN_IF_ERROR(budget_.Take(1));
  if (++depth_ > kMaxRunDepth) return TemplateError(expression.line, "it nests too deeply");
  const absl::Cleanup leave = [this] { --depth_; };
  return EvaluateHere(expression);
}

absl::StatusOr<Value> Interpreter::EvaluateHere(const Expression& expression) {
  const auto operand = [&](size_t i) { return Evaluate(*expression.operands[i]); };
  switch (expression.kind) {
    case ExpressionKind::kLiteral:
      return expression.literal;
    case ExpressionKind::kName:
      return EvaluateName(expression);
    case ExpressionKind::kList:
    case ExpressionKind::kTuple:
      return EvaluateList(expression);
    case ExpressionKind::kDict:
      return EvaluateDict(expression);
    case ExpressionKind::kAttribute: {
      ASSIGN_OR_RETURN(const Value object, operand(0));
      if (IsMethod(object, expression.name)) return Value::Of(Function{expression.name});
      return AtLine(expression, Attribute(object, expression.name, budget_));
    }
    case ExpressionKind::kItem: {
      ASSIGN_OR_RETURN(const Value object, operand(0));
      ASSIGN_OR_RETURN(const Value key, operand(1));
      return AtLine(expression, Item(object, key, budget_));
    }
    case ExpressionKind::kSlice:
      return EvaluateSlice(expression);
    case ExpressionKind::kCall:
      return EvaluateCall(expression);
    case ExpressionKind::kFilter:
      return EvaluateFilter(expression);
    case ExpressionKind::kTest:
      return EvaluateTest(expression);
    case ExpressionKind::kNot: {
      ASSIGN_OR_RETURN(const Value value, operand(0));
      return Value::Of(!value.IsTrue());
    }
    case ExpressionKind::kNegative: {
      ASSIGN_OR_RETURN(const Value value, operand(0));
      return AtLine(expression, Negative(value));
    }
    case ExpressionKind::kArithmetic: {
      ASSIGN_OR_RETURN(const Value a, operand(0));
      ASSIGN_OR_RETURN(const Value b, operand(1));
      return AtLine(expression, Arithmetic(expression.name, a, b, budget_));
    }
    case ExpressionKind::kCompare:
      return EvaluateCompare(expression);
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr:
    case ExpressionKind::kIf:
      return EvaluateChoice(expression);
  }
  return Value();
}

absl::StatusOr<Value> Interpreter::EvaluateName(const Expression& expression) {
  if (const Value* value = Find(expression.name)) return *value;
  for (const std::string_view name : kGlobals) {
    if (name == expression.name) return Value::Of(Function{expression.name});
  }
  return Value::OfUndefined(expression.name);
}

absl::StatusOr<Value> Interpreter::EvaluateList(const Expression& expression) {
  List list;
  for (const ExpressionPtr& operand : expression.operands) {
    ASSIGN_OR_RETURN(Value entry, Evaluate(*operand));
    list.push_back(std::move(entry));
  }
  return Shallow(expression, Value::Of(std::move(list), expression.kind == ExpressionKind::kTuple));
}

absl::StatusOr<Value> Interpreter::EvaluateDict(const Expression& expression) {
  Dict dict;
  for (size_t i = 0; i < expression.operands.size(); i += 2) {
    ASSIGN_OR_RETURN(const Value key, Evaluate(*expression.operands[i]));
    ASSIGN_OR_RETURN(Value value, Evaluate(*expression.operands[i + 1]));
    if (!key.is_text()) return TemplateError(expression.line, "a key must be a string here");
    dict.Set(*key.text(), std::move(value));
  }
  return Shallow(expression, Value::Of(std::move(dict)));
}

absl::StatusOr<Value> Interpreter::EvaluateSlice(const Expression& expression) {
  Value parts[4];
  for (size_t i = 0; i < 4; ++i) {
    parts[i] = Value::OfNone();
    if (expression.operands[i] == nullptr) continue;
    ASSIGN_OR_RETURN(parts[i], Evaluate(*expression.operands[i]));
  }
  return AtLine(expression, Slice(parts[0], parts[1], parts[2], parts[3], budget_));
}

absl::StatusOr<Value> Interpreter::EvaluateCompare(const Expression& expression) {
  ASSIGN_OR_RETURN(Value left, Evaluate(*expression.operands[0]));
  for (size_t i = 0; i < expression.comparisons.size(); ++i) {
    ASSIGN_OR_RETURN(Value right, Evaluate(*expression.operands[i + 1]));
    const auto holds = Compare(expression.comparisons[i], left, right, budget_);
    if (!holds.ok()) return AtLine(expression, holds.status());
    if (!*holds) return Value::Of(false);
    left = std::move(right);
  }
  return Value::Of(true);
}

absl::StatusOr<Value> Interpreter::EvaluateChoice(const Expression& expression) {
  const auto& operands = expression.operands;
  if (expression.kind == ExpressionKind::kIf) {
    ASSIGN_OR_RETURN(const Value condition, Evaluate(*operands[1]));
    if (condition.IsTrue()) return Evaluate(*operands[0]);
    return operands[2] != nullptr ? Evaluate(*operands[2]) : Value::OfUndefined("a condition");
  }
  ASSIGN_OR_RETURN(Value left, Evaluate(*operands[0]));
  if (left.IsTrue() == (expression.kind == ExpressionKind::kOr)) return left;
  return Evaluate(*operands[1]);
}

absl::StatusOr<Arguments> Interpreter::EvaluateArguments(const Expression& call) {
  Arguments arguments;
  for (size_t i = 1; i < call.operands.size(); ++i) {
    ASSIGN_OR_RETURN(Value value, Evaluate(*call.operands[i]));
    arguments.positional.push_back(std::move(value));
  }
  for (const auto& [name, operand] : call.named) {
    ASSIGN_OR_RETURN(Value value, Evaluate(*operand));
    arguments.named.emplace_back(name, std::move(value));
  }
  return arguments;
}

absl::StatusOr<Value> Interpreter::EvaluateCall(const Expression& expression) {
  const Expression& callee = *expression.operands[0];
  if (callee.kind == ExpressionKind::kAttribute) {
    ASSIGN_OR_RETURN(const Value object, Evaluate(*callee.operands[0]));
    if (IsMethod(object, callee.name)) {
      ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(expression));
      return AtLine(expression, CallMethod(object, callee.name, std::move(arguments), budget_));
    }
    if (object.is_undefined()) return AtLine(expression, UndefinedError(object));
    const Value* loop_index = callee.name == "cycle" && object.dict() != nullptr
                                  ? object.dict()->Find("index0")
                                  : nullptr;
    if (loop_index != nullptr && expression.operands.size() > 1) {
      const auto num_values = static_cast<int64_t>(expression.operands.size()) - 1;
      return Evaluate(*expression.operands[1 + loop_index->AsInt() % num_values]);
    }
    return TemplateError(expression.line, absl::StrCat("'", object.TypeName(),
                                                       "' object has no method ", callee.name));
  }
  ASSIGN_OR_RETURN(const Value value, Evaluate(callee));
  ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(expression));
  if (value.is_undefined()) return AtLine(expression, UndefinedError(value));
  if (value.function() == nullptr) {
    return TemplateError(expression.line,
                         absl::StrCat("'", value.TypeName(), "' object is not callable"));
  }
  const Function& function = *value.function();
  if (function.macro == nullptr) {
    return AtLine(expression, CallGlobal(function.name, std::move(arguments)));
  }
  // Errors within have a line already.
  return CallMacro(*function.macro->definition, std::move(arguments));
}

absl::StatusOr<Value> Interpreter::EvaluateFilter(const Expression& expression) {
  ASSIGN_OR_RETURN(const Value input, Evaluate(*expression.operands[0]));
  ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(expression));
  return AtLine(expression, ApplyFilter(expression.name, input, std::move(arguments), budget_));
}

absl::StatusOr<Value> Interpreter::EvaluateTest(const Expression& expression) {
  ASSIGN_OR_RETURN(const Value input, Evaluate(*expression.operands[0]));
  ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(expression));
  return AtLine(expression, ApplyTest(expression.name, input, std::move(arguments), budget_));
}

}  // namespace lockstep::jinja
