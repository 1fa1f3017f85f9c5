// What a chat template says, as a tree. Source of the grammar: Jinja's "Template Designer
// Documentation" (jinja.palletsprojects.com/en/stable/templates).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/chat_template/value.h"

namespace lockstep::jinja {

enum class ExpressionKind {
  kLiteral,
  kName,
  kList,       // operands
  kTuple,      // likewise
  kDict,       // operands: key, value, key, value, ...
  kAttribute,  // operands[0].name
  kItem,       // operands[0][operands[1]]
  kSlice,      // operands[0][operands[1]:operands[2]:operands[3]], null where left out
  kCall,       // operands[0](operands[1..], named)
  kFilter,     // operands[0] | name(operands[1..], named)
  kTest,       // operands[0] is name(operands[1..])
  kNot,
  kNegative,
  kArithmetic,  // by name: + - * / // % ** ~
  kCompare,     // operands[0] names[0] operands[1] names[1] ...: == != < <= > >= in "not in"
  kAnd,
  kOr,
  kIf  // operands[0] if operands[1] else operands[2], which may be null
};

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  ExpressionKind kind = ExpressionKind::kLiteral;
  int line = 1;
  int height = 1;  // of the tree
  std::string name;
  Value literal;
  std::vector<ExpressionPtr> operands;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  std::vector<std::string> comparisons;
};

enum class StatementKind {
  kText,      // literal
  kOutput,    // expression
  kFor,       // for targets in expression if condition: body, else: otherwise
  kIf,        // if expression: body, else: otherwise
  kSet,       // targets (of which one may be name.attribute) = expression
  kSetBlock,  // targets[0] = what body says
  kMacro,     // name(parameters): body
  kFilter,    // expression, in which filtered is what body says
  kBlock,     // body, in a scope of its own
  kBreak,
  kContinue
};

struct Statement;
using Body = std::vector<Statement>;

// No name that a template can write.
inline constexpr char kFiltered[] = "{filtered}";

struct Parameter {
  std::string name;
  ExpressionPtr otherwise;  // null: undefined
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  int line = 1;
  Value literal;
  std::string name;
  std::string attribute;
  std::vector<std::string> targets;
  std::vector<Parameter> parameters;
  ExpressionPtr expression;
  ExpressionPtr condition;
  Body body;
  Body otherwise;
};

}  // namespace lockstep::jinja
