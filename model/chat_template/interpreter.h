// Runs a chat template: a walk over its tree.
//
// One use, one thread. Bounded in work, memory and depth, whatever the template says; the only
// thing of the world that a template can see is the time it is told.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "model/chat_template/arguments.h"
#include "model/chat_template/syntax.h"
#include "model/chat_template/value.h"
#include "model/chat_template/work_budget.h"

namespace lockstep::jinja {

struct Macro {
  const Statement* definition;
};

class Interpreter {
 public:
  using Variables = std::vector<std::pair<std::string, Value>>;
  // now: what strftime_now tells, in that zone.
  Interpreter(Variables variables, absl::Time now, absl::TimeZone zone);

  // INVALID_ARGUMENT with the line, RESOURCE_EXHAUSTED for too much work; FAILED_PRECONDITION with
  // the template's own words when it raises an exception. Once.
  absl::StatusOr<MarkedText> Run(const Body& body);

 private:
  enum class Flow { kNext, kBreak, kContinue };
  using Scope = Variables;
  using Result = absl::StatusOr<Value>;

  absl::StatusOr<Flow> RunBody(const Body& body);
  absl::StatusOr<Flow> RunStatement(const Statement& statement);
  absl::StatusOr<Flow> RunFor(const Statement& statement);
  void Define(const Statement& macro);
  absl::Status RunSet(const Statement& statement);
  absl::Status SetAttribute(const Statement& statement, Value value);
  absl::StatusOr<Flow> RunCaptured(const Statement& statement);
  // flow: how it ended; null: it cannot be left.
  absl::StatusOr<MarkedText> Capture(const Body& body, Flow* flow = nullptr);
  absl::Status Write(const MarkedText& text);
  absl::Status Unpack(const Statement& statement, const Value& value);

  Result Evaluate(const Expression& expression);
  Result EvaluateHere(const Expression& expression);
  Result EvaluateName(const Expression& expression);
  Result EvaluateList(const Expression& expression);
  Result EvaluateDict(const Expression& expression);
  Result EvaluateSlice(const Expression& expression);
  Result EvaluateCompare(const Expression& expression);
  Result EvaluateChoice(const Expression& expression);
  Result EvaluateCall(const Expression& expression);
  Result EvaluateFilter(const Expression& expression);
  Result EvaluateTest(const Expression& expression);
  absl::StatusOr<Arguments> EvaluateArguments(const Expression& call);
  Result CallFunction(const Function& function, Arguments arguments);
  Result CallMacro(const Statement& macro, Arguments arguments);
  Result CallGlobal(std::string_view name, Arguments arguments);

  const Value* Find(std::string_view name) const;
  void Set(std::string name, Value value);

  const absl::Time now_;
  const absl::TimeZone zone_;
  WorkBudget budget_;
  std::vector<Scope> scopes_;  // [0]: the template's own; on top the innermost
  size_t macro_scope_ = 0;     // below it, but for [0], a macro sees nothing
  std::vector<Macro> macros_;  // made room for before it runs: values point to them
  MarkedText* output_ = nullptr;
  int depth_ = 0;
};

}  // namespace lockstep::jinja
