// The expressions of a chat template, by recursive descent in Jinja's order of precedence.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/chat_template/lexer.h"
#include "model/chat_template/syntax.h"

namespace lockstep::jinja {

// Reads tokens one after the other; shared by those who read statements.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  using Result = absl::StatusOr<ExpressionPtr>;
  Result ParseExpression();          // with a conditional
  Result ParseWithoutConditional();  // "for x in HERE if ..."
  Result ParseTuple();               // "a, b" is one, "a" is not
  // "upper | trim" applied to the variable.
  Result ParseFilterOf(const char* variable);

  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token Take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool IsName(std::string_view name) const { return now().Is(TokenKind::kName, name); }
  bool IsOperator(std::string_view name) const { return now().Is(TokenKind::kOperator, name); }
  bool SkipName(std::string_view name);
  bool SkipOperator(std::string_view name);
  absl::Status ExpectOperator(std::string_view name);
  absl::StatusOr<std::string> ExpectName();
  // "unexpected ..." at the next token.
  absl::Status Unexpected() const;

 private:
  ExpressionPtr Make(ExpressionKind kind, std::string name = "") const;
  absl::Status TooDeep() const;
  absl::Status Add(ExpressionPtr operand, Expression& to) const;
  Result ParseLeftToRight(ExpressionKind kind, std::initializer_list<const char*> operators,
                          Result (ExpressionParser::*operand)());
  Result ParseOr();
  Result ParseAnd();
  Result ParseNot();
  Result ParseCompare();
  std::string TakeComparison();
  Result ParseSum();
  Result ParseConcatenation();
  Result ParseProduct();
  Result ParsePower();
  Result ParseOperand();
  Result ParseUnary(bool with_filters);
  Result ParsePrimary();
  Result ParseParenthesis();
  Result ParseList();
  Result ParseDict();
  Result ParsePostfix(ExpressionPtr expression);
  // has_bar: the first one's is taken.
  Result ParseFilters(ExpressionPtr expression, bool has_bar = false);
  Result ParseTest(ExpressionPtr expression);
  Result ParseSubscript(ExpressionPtr object);
  absl::Status ParseArguments(Expression& call);  // after "("
  bool BeginsTestArgument() const;

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace lockstep::jinja
