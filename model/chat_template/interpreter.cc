#include "model/chat_template/interpreter.h"

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/chat_template/lexer.h"
#include "model/chat_template/operators.h"

namespace lockstep::jinja {
namespace {

constexpr int64_t kLoopUnits = 16;  // what an iteration costs besides its body

// Of loop, beside what it goes over.
Value LoopFacts(const List& list, size_t i) {
  const auto number = [](size_t value) { return Value::Of(static_cast<int64_t>(value)); };
  const size_t num = list.size();
  const std::pair<const char*, Value> facts[] = {
      {"index", number(i + 1)},
      {"index0", number(i)},
      {"first", Value::Of(i == 0)},
      {"last", Value::Of(i + 1 == num)},
      {"length", number(num)},
      {"revindex", number(num - i)},
      {"revindex0", number(num - i - 1)},
      {"depth", number(1)},
      {"depth0", number(0)},
      {"previtem", i > 0 ? list[i - 1] : Value::OfUndefined("loop.previtem")},
      {"nextitem", i + 1 < num ? list[i + 1] : Value::OfUndefined("loop.nextitem")}};
  Dict loop;
  loop.is_namespace = true;  // no mapping: its names are attributes
  for (const auto& [name, value] : facts) {
    loop.entries.emplace_back(MarkedText(name, /*is_markup=*/true), value);
  }
  return Value::Of(std::move(loop));
}

// Macros have an address before they are called.
size_t CountMacros(const Body& body) {
  size_t count = 0;
  for (const Statement& statement : body) {
    count += statement.kind == StatementKind::kMacro ? 1 : 0;
    count += CountMacros(statement.body) + CountMacros(statement.otherwise);
  }
  return count;
}

}  // namespace

Interpreter::Interpreter(Variables variables, absl::Time now, absl::TimeZone zone)
    : now_(now), zone_(zone), scopes_(1, std::move(variables)) {}

absl::StatusOr<MarkedText> Interpreter::Run(const Body& body) {
  macros_.reserve(CountMacros(body));
  return Capture(body);
}

absl::StatusOr<MarkedText> Interpreter::Capture(const Body& body, Flow* flow) {
  MarkedText text;
  MarkedText* const outer = std::exchange(output_, &text);
  const absl::StatusOr<Flow> end = RunBody(body);
  output_ = outer;
  RETURN_IF_ERROR(end.status());
  if (flow != nullptr) *flow = *end;
  return text;
}

absl::Status Interpreter::Write(const MarkedText& text) {
  RETURN_IF_ERROR(budget_.TakeText(text.size()));
  if (output_->size() + text.size() > WorkBudget::kMaxTextBytes) {
    return budget_.TakeText(output_->size() + text.size());
  }
  output_->Append(text);
  return absl::OkStatus();
}

const Value* Interpreter::Find(std::string_view name) const {
  for (size_t i = scopes_.size(); i-- > 0;) {
    if (i > 0 && i < macro_scope_) continue;
    const auto found = std::find_if(scopes_[i].begin(), scopes_[i].end(),
                                    [&](const auto& entry) { return entry.first == name; });
    if (found != scopes_[i].end()) return &found->second;
  }
  return nullptr;
}

void Interpreter::Set(std::string name, Value value) {
  Scope& scope = scopes_.back();
  const auto found = std::find_if(scope.begin(), scope.end(),
                                  [&](const auto& entry) { return entry.first == name; });
  if (found == scope.end()) {
    scope.emplace_back(std::move(name), std::move(value));
  } else {
    found->second = std::move(value);
  }
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunBody(const Body& body) {
  if (body.empty()) return Flow::kNext;
  if (++depth_ > kMaxRunDepth) return TemplateError(body[0].line, "it nests too deeply");
  const absl::Cleanup leave = [this] { --depth_; };
  for (const Statement& statement : body) {
    ASSIGN_OR_RETURN(const Flow flow, RunStatement(statement));
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunStatement(const Statement& statement) {
  RETURN_IF_ERROR(budget_.Take(1));
  switch (statement.kind) {
    case StatementKind::kText:
      RETURN_IF_ERROR(Write(*statement.literal.text()));
      return Flow::kNext;
    case StatementKind::kOutput: {
      ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression));
      ASSIGN_OR_RETURN(const MarkedText text, ToText(value, budget_));
      RETURN_IF_ERROR(Write(text));
      return Flow::kNext;
    }
    case StatementKind::kFor:
      return RunFor(statement);
    case StatementKind::kIf: {
      ASSIGN_OR_RETURN(const Value condition, Evaluate(*statement.expression));
      return RunBody(condition.IsTrue() ? statement.body : statement.otherwise);
    }
    case StatementKind::kSet:
      RETURN_IF_ERROR(RunSet(statement));
      return Flow::kNext;
    case StatementKind::kSetBlock:
    case StatementKind::kFilter:
      return RunCaptured(statement);
    case StatementKind::kMacro:
      Define(statement);
      return Flow::kNext;
    case StatementKind::kBlock: {
      scopes_.emplace_back();
      const absl::Cleanup leave = [this] { scopes_.pop_back(); };
      return RunBody(statement.body);
    }
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

void Interpreter::Define(const Statement& statement) {
  auto macro = std::find_if(macros_.begin(), macros_.end(),
                            [&](const Macro& each) { return each.definition == &statement; });
  if (macro == macros_.end()) macro = macros_.insert(macro, {&statement});
  Set(statement.name, Value::Of(Function{statement.name, &*macro}));
}

absl::Status Interpreter::Unpack(const Statement& statement, const Value& value) {
  if (statement.targets.size() == 1) {
    Set(statement.targets[0], value);
    return absl::OkStatus();
  }
  const auto entries = Iterate(value, budget_);
  if (!entries.ok()) return TemplateError(statement.line, entries.status().message());
  if (entries->size() != statement.targets.size()) {
    return TemplateError(statement.line, absl::StrCat(statement.targets.size(), " names for ",
                                                      entries->size(), " values"));
  }
  for (size_t i = 0; i < entries->size(); ++i) Set(statement.targets[i], (*entries)[i]);
  return absl::OkStatus();
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunFor(const Statement& statement) {
  ASSIGN_OR_RETURN(const Value over, Evaluate(*statement.expression));
  auto iterated = Iterate(over, budget_);
  if (!iterated.ok()) return TemplateError(statement.line, iterated.status().message());
  List list = *std::move(iterated);
  if (statement.condition != nullptr) {
    List kept;
    for (const Value& entry : list) {
      scopes_.emplace_back();
      const absl::Cleanup leave = [this] { scopes_.pop_back(); };
      RETURN_IF_ERROR(Unpack(statement, entry));
      ASSIGN_OR_RETURN(const Value keeps, Evaluate(*statement.condition));
      if (keeps.IsTrue()) kept.push_back(entry);
    }
    list = std::move(kept);
  }
  bool any_to_the_end = false;
  for (size_t i = 0; i < list.size(); ++i) {
    scopes_.emplace_back();
    const absl::Cleanup leave = [this] { scopes_.pop_back(); };
    RETURN_IF_ERROR(budget_.Take(kLoopUnits));
    Set("loop", LoopFacts(list, i));
    RETURN_IF_ERROR(Unpack(statement, list[i]));
    ASSIGN_OR_RETURN(const Flow flow, RunBody(statement.body));
    any_to_the_end = any_to_the_end || flow == Flow::kNext;
    if (flow == Flow::kBreak) break;
  }
  // As Jinja has it, which documents only the empty list.
  if (any_to_the_end) return Flow::kNext;
  scopes_.emplace_back();
  const absl::Cleanup leave = [this] { scopes_.pop_back(); };
  return RunBody(statement.otherwise);  // what leaves a loop here leaves an outer one
}

// What is left by a break is not heard of.
absl::StatusOr<Interpreter::Flow> Interpreter::RunCaptured(const Statement& statement) {
  Flow flow = Flow::kNext;
  scopes_.emplace_back();
  auto text = Capture(statement.body, &flow);
  scopes_.pop_back();
  RETURN_IF_ERROR(text.status());
  if (flow != Flow::kNext) return flow;
  if (statement.kind == StatementKind::kSetBlock) {
    Set(statement.targets[0], Value::Of(*std::move(text)));
    return Flow::kNext;
  }
  scopes_.emplace_back();
  const absl::Cleanup leave = [this] { scopes_.pop_back(); };
  Set(kFiltered, Value::Of(*std::move(text)));
  ASSIGN_OR_RETURN(const Value filtered, Evaluate(*statement.expression));
  ASSIGN_OR_RETURN(const MarkedText filtered_text, ToText(filtered, budget_));
  RETURN_IF_ERROR(Write(filtered_text));
  return Flow::kNext;
}

absl::Status Interpreter::RunSet(const Statement& statement) {
  ASSIGN_OR_RETURN(Value value, Evaluate(*statement.expression));
  if (!statement.attribute.empty()) return SetAttribute(statement, std::move(value));
  return Unpack(statement, value);
}

absl::Status Interpreter::SetAttribute(const Statement& statement, Value value) {
  const Value* object = Find(statement.targets[0]);
  if (object == nullptr || object->dict() == nullptr || !object->dict()->is_namespace) {
    return TemplateError(statement.line, "cannot assign attribute on non-namespace object");
  }
  if (value.holds_namespace()) {
    return TemplateError(statement.line, "a namespace cannot hold a namespace");
  }
  object->mutable_dict()->Set(MarkedText(statement.attribute, /*is_markup=*/true),
                              std::move(value));
  return absl::OkStatus();
}

absl::StatusOr<Value> Interpreter::CallMacro(const Statement& macro, Arguments arguments) {
  scopes_.emplace_back();
  const size_t outer_scope = std::exchange(macro_scope_, scopes_.size() - 1);
  const absl::Cleanup leave = [&] {
    scopes_.pop_back();
    macro_scope_ = outer_scope;
  };
  ArgumentReader reader(std::move(arguments));
  for (const Parameter& parameter : macro.parameters) {
    std::optional<Value> value = reader.Next(parameter.name.c_str());
    if (!value && parameter.otherwise != nullptr) {
      ASSIGN_OR_RETURN(value, Evaluate(*parameter.otherwise));
    }
    Set(parameter.name, value ? *std::move(value) : Value::OfUndefined(parameter.name));
  }
  if (const absl::Status rest = reader.Finish(); !rest.ok()) {
    return TemplateError(macro.line, absl::StrCat("macro ", macro.name, " ", rest.message()));
  }
  ASSIGN_OR_RETURN(MarkedText text, Capture(macro.body));
  return Value::Of(std::move(text));
}

// raise_exception and strftime_now are what transformers adds.
absl::StatusOr<Value> Interpreter::CallGlobal(std::string_view name, Arguments arguments) {
  ArgumentReader reader(std::move(arguments));
  if (name == "raise_exception") {
    ASSIGN_OR_RETURN(const MarkedText message, ToText(reader.NextOr("message", Value()), budget_));
    return absl::FailedPreconditionError(message.text());
  }
  if (name == "strftime_now") {
    ASSIGN_OR_RETURN(const std::optional<MarkedText> format, reader.NextText("format"));
    if (!format) return absl::InvalidArgumentError("strftime_now wants a format");
    const std::vector<TextPiece> pieces = format->Pieces();
    const bool is_markup = pieces.size() == 1 && pieces[0].is_markup;
    return Value::Of(MarkedText(absl::FormatTime(format->text(), now_, zone_), is_markup));
  }
  if (name == "namespace" || name == "dict") {
    Arguments all = reader.TakeRest();
    Dict dict;
    if (!all.positional.empty() && all.positional[0].dict() != nullptr) {
      dict.entries = all.positional[0].dict()->entries;
    }
    for (auto& [key, value] : all.named) {
      if (value.holds_namespace() || value.depth() >= kMaxValueDepth) {
        return absl::InvalidArgumentError("values nest too deeply");
      }
      dict.Set(MarkedText(key, /*is_markup=*/true), std::move(value));
    }
    dict.is_namespace = name == "namespace";
    return Value::Of(std::move(dict));
  }
  ASSIGN_OR_RETURN(const std::optional<int64_t> first, reader.NextInt("start"));
  ASSIGN_OR_RETURN(const std::optional<int64_t> second, reader.NextInt("stop"));
  ASSIGN_OR_RETURN(const std::optional<int64_t> given_step, reader.NextInt("step"));
  const int64_t step = given_step.value_or(1);
  if (!first || step == 0) return absl::InvalidArgumentError("range wants integers, no step of 0");
  const int64_t start = second ? *first : 0;
  const int64_t stop = second ? *second : *first;
  List list;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    RETURN_IF_ERROR(budget_.Take(1));
    list.push_back(Value::Of(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::Of(std::move(list));
}

}  // namespace lockstep::jinja
