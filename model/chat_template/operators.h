// Python's operators on the values of a chat template. Errors are INVALID_ARGUMENT in Python's
// words, without a line.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "model/chat_template/value.h"
#include "model/chat_template/work_budget.h"

namespace lockstep::jinja {

// name: + - * / // % ** ~
absl::StatusOr<Value> Arithmetic(std::string_view name, const Value& a, const Value& b,
                                 WorkBudget& budget);
absl::StatusOr<Value> Negative(const Value& value);
// name: == != < <= > >= in, "not in"
absl::StatusOr<bool> Compare(std::string_view name, const Value& a, const Value& b,
                             WorkBudget& budget);
// value[key]; undefined where there is none.
absl::StatusOr<Value> Item(const Value& value, const Value& key, WorkBudget& budget);
absl::StatusOr<Value> Slice(const Value& value, const Value& start, const Value& stop,
                            const Value& step, WorkBudget& budget);
// What a loop goes over.
absl::StatusOr<List> Iterate(const Value& value, WorkBudget& budget);
// "'name' is undefined".
absl::Status UndefinedError(const Value& value);

}  // namespace lockstep::jinja
