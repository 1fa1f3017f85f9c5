// Jinja's filters ("x | trim"), tests ("x is defined") and the methods of Python's types, as far as
// chat templates use them. Errors are INVALID_ARGUMENT in words, without a line.
// Source: Jinja's "List of Builtin Filters" and "List of Builtin Tests"; transformers'
// chat_template_utils.py for tojson.
#pragma once

#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "model/chat_template/arguments.h"
#include "model/chat_template/value.h"
#include "model/chat_template/work_budget.h"

namespace lockstep::jinja {

absl::StatusOr<Value> ApplyFilter(std::string_view name, const Value& input, Arguments arguments,
                                  WorkBudget& budget);
// Those that take one list of values and choose among them or change each.
bool IsListFilter(std::string_view name);
absl::StatusOr<Value> ApplyListFilter(std::string_view name, const Value& input,
                                      ArgumentReader& arguments, WorkBudget& budget);
absl::StatusOr<bool> ApplyTest(std::string_view name, const Value& input, Arguments arguments,
                               WorkBudget& budget);

// Whether object.name is a method.
bool IsMethod(const Value& object, std::string_view name);
absl::StatusOr<Value> CallMethod(const Value& object, std::string_view name, Arguments arguments,
                                 WorkBudget& budget);
// object.name, of what is no method; undefined where there is none.
absl::StatusOr<Value> Attribute(const Value& object, std::string_view name, WorkBudget& budget);

}  // namespace lockstep::jinja
