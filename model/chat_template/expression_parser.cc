#include "model/chat_template/expression_parser.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/json/strict_json.h"

namespace lockstep::jinja {
namespace {

// Of expressions in each other: each level takes about a kilobyte of the stack, nine functions of
// it, and no template has twenty.
constexpr int kMaxParseDepth = 200;
// Of the tree, which a long sum makes high as well.
constexpr int kMaxHeight = 500;

}  // namespace

bool ExpressionParser::SkipName(std::string_view name) {
  const bool is_there = IsName(name);
  if (is_there) Take();
  return is_there;
}

bool ExpressionParser::SkipOperator(std::string_view name) {
  const bool is_there = IsOperator(name);
  if (is_there) Take();
  return is_there;
}

absl::Status ExpressionParser::ExpectOperator(std::string_view name) {
  return SkipOperator(name) ? absl::OkStatus() : Unexpected();
}

absl::StatusOr<std::string> ExpressionParser::ExpectName() {
  if (now().kind != TokenKind::kName) return Unexpected();
  return Take().text;
}

absl::Status ExpressionParser::Unexpected() const {
  switch (now().kind) {
    case TokenKind::kEnd:
      return TemplateError(now().line, "the template ends too early");
    case TokenKind::kOutputEnd:
      return TemplateError(now().line, "unexpected }}");
    case TokenKind::kBlockEnd:
      return TemplateError(now().line, "unexpected %}");
    default:
      return TemplateError(now().line, absl::StrCat("unexpected ", Quoted(now().text)));
  }
}

absl::Status ExpressionParser::TooDeep() const {
  return TemplateError(now().line, "expressions nest too deeply");
}

absl::Status ExpressionParser::Add(ExpressionPtr operand, Expression& to) const {
  if (operand != nullptr) to.height = std::max(to.height, operand->height + 1);
  to.operands.push_back(std::move(operand));
  return to.height <= kMaxHeight ? absl::OkStatus() : TooDeep();
}

ExpressionPtr ExpressionParser::Make(ExpressionKind kind, std::string name) const {
  auto made = std::make_unique<Expression>();
  made->kind = kind;
  made->line = now().line;
  made->name = std::move(name);
  return made;
}

ExpressionParser::Result ExpressionParser::ParseTuple() {
  ASSIGN_OR_RETURN(ExpressionPtr first, ParseExpression());
  if (!IsOperator(",")) return first;
  ExpressionPtr tuple = Make(ExpressionKind::kTuple);
  RETURN_IF_ERROR(Add(std::move(first), *tuple));
  while (SkipOperator(",")) {
    const bool is_over = now().kind == TokenKind::kOutputEnd ||
                         now().kind == TokenKind::kBlockEnd || IsOperator(")");
    if (is_over) break;
    ASSIGN_OR_RETURN(ExpressionPtr next, ParseExpression());
    RETURN_IF_ERROR(Add(std::move(next), *tuple));
  }
  return tuple;
}

ExpressionParser::Result ExpressionParser::ParseExpression() {
  ASSIGN_OR_RETURN(ExpressionPtr expression, ParseOr());
  while (IsName("if")) {
    ExpressionPtr choice = Make(ExpressionKind::kIf);
    Take();
    RETURN_IF_ERROR(Add(std::move(expression), *choice));
    ASSIGN_OR_RETURN(ExpressionPtr condition, ParseOr());
    RETURN_IF_ERROR(Add(std::move(condition), *choice));
    choice->operands.push_back(nullptr);
    if (SkipName("else")) {
      ASSIGN_OR_RETURN(choice->operands.back(), ParseExpression());
      choice->height = std::max(choice->height, choice->operands.back()->height + 1);
    }
    expression = std::move(choice);
  }
  return expression;
}

ExpressionParser::Result ExpressionParser::ParseWithoutConditional() { return ParseOr(); }

ExpressionParser::Result ExpressionParser::ParseLeftToRight(
    ExpressionKind kind, std::initializer_list<const char*> operators,
    Result (ExpressionParser::*operand)()) {
  ASSIGN_OR_RETURN(ExpressionPtr left, (this->*operand)());
  while (absl::c_any_of(operators,
                        [this](const char* name) { return IsOperator(name) || IsName(name); })) {
    ExpressionPtr both = Make(kind, now().text);
    Take();
    RETURN_IF_ERROR(Add(std::move(left), *both));
    ASSIGN_OR_RETURN(ExpressionPtr right, (this->*operand)());
    RETURN_IF_ERROR(Add(std::move(right), *both));
    left = std::move(both);
  }
  return left;
}

ExpressionParser::Result ExpressionParser::ParseOr() {
  if (++depth_ > kMaxParseDepth) return TooDeep();
  const absl::Cleanup leave = [this] { --depth_; };
  return ParseLeftToRight(ExpressionKind::kOr, {"or"}, &ExpressionParser::ParseAnd);
}

ExpressionParser::Result ExpressionParser::ParseAnd() {
  return ParseLeftToRight(ExpressionKind::kAnd, {"and"}, &ExpressionParser::ParseNot);
}

ExpressionParser::Result ExpressionParser::ParseNot() {
  int num_nots = 0;
  while (SkipName("not")) ++num_nots;
  ASSIGN_OR_RETURN(ExpressionPtr expression, ParseCompare());
  // Two of them make a bool of it.
  for (int i = 0; i < std::min(num_nots, 2 + num_nots % 2); ++i) {
    ExpressionPtr negated = Make(ExpressionKind::kNot);
    RETURN_IF_ERROR(Add(std::move(expression), *negated));
    expression = std::move(negated);
  }
  return expression;
}

// Empty when there is none.
std::string ExpressionParser::TakeComparison() {
  for (const char* name : {"==", "!=", "<=", ">=", "<", ">"}) {
    if (SkipOperator(name)) return name;
  }
  if (SkipName("in")) return "in";
  if (IsName("not") && ahead().Is(TokenKind::kName, "in")) {
    Take();
    Take();
    return "not in";
  }
  return "";
}

ExpressionParser::Result ExpressionParser::ParseCompare() {
  ASSIGN_OR_RETURN(ExpressionPtr left, ParseSum());
  ExpressionPtr chain = Make(ExpressionKind::kCompare);
  while (true) {
    std::string comparison = TakeComparison();
    if (comparison.empty()) break;
    chain->comparisons.push_back(std::move(comparison));
    if (chain->operands.empty()) RETURN_IF_ERROR(Add(std::move(left), *chain));
    ASSIGN_OR_RETURN(ExpressionPtr right, ParseSum());
    RETURN_IF_ERROR(Add(std::move(right), *chain));
  }
  return chain->operands.empty() ? std::move(left) : std::move(chain);
}

ExpressionParser::Result ExpressionParser::ParseSum() {
  return ParseLeftToRight(ExpressionKind::kArithmetic, {"+", "-"},
                          &ExpressionParser::ParseConcatenation);
}

ExpressionParser::Result ExpressionParser::ParseConcatenation() {
  return ParseLeftToRight(ExpressionKind::kArithmetic, {"~"}, &ExpressionParser::ParseProduct);
}

ExpressionParser::Result ExpressionParser::ParseProduct() {
  return ParseLeftToRight(ExpressionKind::kArithmetic, {"*", "/", "//", "%"},
                          &ExpressionParser::ParsePower);
}

ExpressionParser::Result ExpressionParser::ParsePower() {
  return ParseLeftToRight(ExpressionKind::kArithmetic, {"**"}, &ExpressionParser::ParseOperand);
}

ExpressionParser::Result ExpressionParser::ParseOperand() {
  return ParseUnary(/*with_filters=*/true);
}

ExpressionParser::Result ExpressionParser::ParseUnary(bool with_filters) {
  if (++depth_ > kMaxParseDepth) return TooDeep();
  const absl::Cleanup leave = [this] { --depth_; };
  ExpressionPtr expression;
  if (IsOperator("-")) {
    expression = Make(ExpressionKind::kNegative);
    Take();
    ASSIGN_OR_RETURN(ExpressionPtr operand, ParseUnary(/*with_filters=*/false));
    RETURN_IF_ERROR(Add(std::move(operand), *expression));
  } else if (SkipOperator("+")) {
    ASSIGN_OR_RETURN(expression, ParseUnary(/*with_filters=*/false));
  } else {
    ASSIGN_OR_RETURN(expression, ParsePrimary());
  }
  ASSIGN_OR_RETURN(expression, ParsePostfix(std::move(expression)));
  return with_filters ? ParseFilters(std::move(expression)) : std::move(expression);
}

ExpressionParser::Result ExpressionParser::ParsePrimary() {
  if (SkipOperator("(")) return ParseParenthesis();
  if (SkipOperator("[")) return ParseList();
  if (SkipOperator("{")) return ParseDict();
  ExpressionPtr literal = Make(ExpressionKind::kLiteral);
  const Token token = now();
  switch (token.kind) {
    case TokenKind::kName: {
      Take();
      const std::string& name = token.text;
      if (name == "true" || name == "True" || name == "false" || name == "False") {
        literal->literal = Value::Of(name == "true" || name == "True");
      } else if (name == "none" || name == "None") {
        literal->literal = Value::OfNone();
      } else {
        literal->kind = ExpressionKind::kName;
        literal->name = name;
      }
      return literal;
    }
    case TokenKind::kString: {
      std::string text;
      while (now().kind == TokenKind::kString) text += Take().text;
      literal->literal = Value::Markup(text);
      return literal;
    }
    case TokenKind::kInteger: {
      int64_t value = 0;
      if (!absl::SimpleAtoi(token.text, &value)) {
        return TemplateError(token.line, absl::StrCat(token.text, " does not fit 64 bits"));
      }
      Take();
      literal->literal = Value::Of(value);
      return literal;
    }
    case TokenKind::kFloat: {
      double value = 0;
      if (!absl::SimpleAtod(token.text, &value)) return Unexpected();
      Take();
      literal->literal = Value::Of(value);
      return literal;
    }
    default:
      return Unexpected();
  }
}

ExpressionParser::Result ExpressionParser::ParseParenthesis() {
  if (SkipOperator(")")) return Make(ExpressionKind::kTuple);
  ASSIGN_OR_RETURN(ExpressionPtr inner, ParseTuple());
  RETURN_IF_ERROR(ExpectOperator(")"));
  return inner;
}

ExpressionParser::Result ExpressionParser::ParseList() {
  ExpressionPtr list = Make(ExpressionKind::kList);
  while (!SkipOperator("]")) {
    if (!list->operands.empty()) {
      RETURN_IF_ERROR(ExpectOperator(","));
      if (SkipOperator("]")) break;
    }
    ASSIGN_OR_RETURN(ExpressionPtr entry, ParseExpression());
    RETURN_IF_ERROR(Add(std::move(entry), *list));
  }
  return list;
}

ExpressionParser::Result ExpressionParser::ParseDict() {
  ExpressionPtr dict = Make(ExpressionKind::kDict);
  while (!SkipOperator("}")) {
    if (!dict->operands.empty()) {
      RETURN_IF_ERROR(ExpectOperator(","));
      if (SkipOperator("}")) break;
    }
    ASSIGN_OR_RETURN(ExpressionPtr key, ParseExpression());
    RETURN_IF_ERROR(ExpectOperator(":"));
    ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
    RETURN_IF_ERROR(Add(std::move(key), *dict));
    RETURN_IF_ERROR(Add(std::move(value), *dict));
  }
  return dict;
}

}  // namespace lockstep::jinja
