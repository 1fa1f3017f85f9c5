// What follows a value: attributes, items, calls, filters and tests.
#include <utility>

#include "kernels/base/status_macros.h"
#include "model/chat_template/expression_parser.h"

namespace lockstep::jinja {

ExpressionParser::Result ExpressionParser::ParsePostfix(ExpressionPtr expression) {
  while (true) {
    if (IsOperator(".")) {
      ExpressionPtr attribute = Make(ExpressionKind::kAttribute);
      Take();
      if (now().kind == TokenKind::kInteger) {  // "x.0" is "x[0]"
        attribute->kind = ExpressionKind::kItem;
        RETURN_IF_ERROR(Add(std::move(expression), *attribute));
        ASSIGN_OR_RETURN(ExpressionPtr index, ParsePrimary());
        RETURN_IF_ERROR(Add(std::move(index), *attribute));
        expression = std::move(attribute);
        continue;
      }
      if (now().kind != TokenKind::kName) return Unexpected();
      attribute->name = Take().text;
      RETURN_IF_ERROR(Add(std::move(expression), *attribute));
      expression = std::move(attribute);
    } else if (SkipOperator("[")) {
      ASSIGN_OR_RETURN(expression, ParseSubscript(std::move(expression)));
    } else if (IsOperator("(")) {
      ExpressionPtr call = Make(ExpressionKind::kCall);
      Take();
      RETURN_IF_ERROR(Add(std::move(expression), *call));
      RETURN_IF_ERROR(ParseArguments(*call));
      expression = std::move(call);
    } else {
      return expression;
    }
  }
}

ExpressionParser::Result ExpressionParser::ParseSubscript(ExpressionPtr object) {
  ExpressionPtr item = Make(ExpressionKind::kItem);
  RETURN_IF_ERROR(Add(std::move(object), *item));
  ExpressionPtr bounds[3];
  int num_colons = 0;
  while (!SkipOperator("]")) {
    if (SkipOperator(":")) {
      if (++num_colons > 2) return Unexpected();
    } else if (bounds[num_colons] == nullptr) {
      ASSIGN_OR_RETURN(bounds[num_colons], ParseExpression());
    } else {
      return Unexpected();
    }
  }
  if (num_colons == 0) {
    if (bounds[0] == nullptr) return TemplateError(item->line, "[] has no index");
    RETURN_IF_ERROR(Add(std::move(bounds[0]), *item));
    return item;
  }
  item->kind = ExpressionKind::kSlice;
  for (ExpressionPtr& bound : bounds) RETURN_IF_ERROR(Add(std::move(bound), *item));
  return item;
}

ExpressionParser::Result ExpressionParser::ParseFilterOf(const char* variable) {
  return ParseFilters(Make(ExpressionKind::kName, variable), /*has_bar=*/true);
}

ExpressionParser::Result ExpressionParser::ParseFilters(ExpressionPtr expression, bool has_bar) {
  while (true) {
    if (std::exchange(has_bar, false) || SkipOperator("|")) {
      ExpressionPtr filter = Make(ExpressionKind::kFilter);
      ASSIGN_OR_RETURN(filter->name, ExpectName());
      while (SkipOperator(".")) {  // no name of ours has one: an error once it is applied
        ASSIGN_OR_RETURN(const std::string more, ExpectName());
        filter->name += "." + more;
      }
      RETURN_IF_ERROR(Add(std::move(expression), *filter));
      if (SkipOperator("(")) RETURN_IF_ERROR(ParseArguments(*filter));
      expression = std::move(filter);
    } else if (SkipName("is")) {
      ASSIGN_OR_RETURN(expression, ParseTest(std::move(expression)));
    } else {
      return expression;
    }
  }
}

bool ExpressionParser::BeginsTestArgument() const {
  switch (now().kind) {
    case TokenKind::kString:
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return true;
    case TokenKind::kName:
      for (const char* name : {"else", "or", "and", "is", "if", "not", "in"}) {
        if (now().text == name) return false;
      }
      return true;
    default:
      return IsOperator("[") || IsOperator("{");
  }
}

ExpressionParser::Result ExpressionParser::ParseTest(ExpressionPtr expression) {
  const bool is_negated = SkipName("not");
  ExpressionPtr test = Make(ExpressionKind::kTest);
  ASSIGN_OR_RETURN(test->name, ExpectName());
  RETURN_IF_ERROR(Add(std::move(expression), *test));
  if (SkipOperator("(")) {
    RETURN_IF_ERROR(ParseArguments(*test));
  } else if (BeginsTestArgument()) {
    ASSIGN_OR_RETURN(ExpressionPtr argument, ParsePrimary());
    ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
    RETURN_IF_ERROR(Add(std::move(argument), *test));
  }
  if (!is_negated) return test;
  ExpressionPtr negated = Make(ExpressionKind::kNot);
  RETURN_IF_ERROR(Add(std::move(test), *negated));
  return negated;
}

absl::Status ExpressionParser::ParseArguments(Expression& call) {
  for (bool is_first = true; !SkipOperator(")"); is_first = false) {
    if (!is_first) {
      RETURN_IF_ERROR(ExpectOperator(","));
      if (SkipOperator(")")) break;
    }
    const bool is_named = now().kind == TokenKind::kName && ahead().Is(TokenKind::kOperator, "=");
    std::string name = is_named ? Take().text : "";
    if (is_named) Take();
    if (!is_named && !call.named.empty()) return Unexpected();
    ASSIGN_OR_RETURN(ExpressionPtr argument, ParseExpression());
    if (is_named) {
      call.height = std::max(call.height, argument->height + 1);
      call.named.emplace_back(std::move(name), std::move(argument));
    } else {
      RETURN_IF_ERROR(Add(std::move(argument), call));
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep::jinja
