#include "model/chat_template/parser.h"

#include <initializer_list>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/chat_template/expression_parser.h"
#include "model/json/strict_json.h"

namespace lockstep::jinja {
namespace {

constexpr int kMaxBlockDepth = 200;  // of blocks in each other; an "elif" counts as one

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  absl::StatusOr<Body> Run() {
    ASSIGN_OR_RETURN(Body body, ParseBody({}));
    if (tokens_.now().kind != TokenKind::kEnd) return tokens_.Unexpected();
    return body;
  }

 private:
  Statement Make(StatementKind kind) const {
    Statement statement;
    statement.kind = kind;
    statement.line = tokens_.now().line;
    return statement;
  }

  // Up to "{% END", of which "{%" is taken, or up to the end of all.
  absl::StatusOr<Body> ParseBody(std::initializer_list<const char*> ends) {
    if (++depth_ > kMaxBlockDepth) {
      return TemplateError(tokens_.now().line, "blocks nest too deeply");
    }
    const absl::Cleanup leave = [this] { --depth_; };
    Body body;
    while (tokens_.now().kind != TokenKind::kEnd) {
      const Token token = tokens_.Take();
      if (token.kind == TokenKind::kText) {
        body.push_back(Make(StatementKind::kText));
        body.back().line = token.line;
        body.back().literal = Value::Markup(token.text);
      } else if (token.kind == TokenKind::kOutputBegin) {
        body.push_back(Make(StatementKind::kOutput));
        ASSIGN_OR_RETURN(body.back().expression, tokens_.ParseTuple());
        if (tokens_.Take().kind != TokenKind::kOutputEnd) return UnexpectedBefore();
      } else {
        for (const char* end : ends) {
          if (tokens_.IsName(end)) return body;
        }
        ASSIGN_OR_RETURN(Statement statement, ParseBlock());
        body.push_back(std::move(statement));
      }
    }
    if (ends.size() > 0) {
      return TemplateError(tokens_.now().line,
                           absl::StrCat("there is no {% ", *(ends.end() - 1), " %}"));
    }
    return body;
  }

  absl::Status UnexpectedBefore() const {
    return TemplateError(tokens_.now().line, "an expression does not end where it should");
  }

  absl::Status EndBlock() {
    if (tokens_.now().kind != TokenKind::kBlockEnd) return tokens_.Unexpected();
    tokens_.Take();
    return absl::OkStatus();
  }

  // "NAME %}" of a block's end.
  absl::Status EndBlock(const char* name) {
    if (!tokens_.SkipName(name)) return tokens_.Unexpected();
    return EndBlock();
  }

  absl::StatusOr<Statement> ParseBlock() {
    const int line = tokens_.now().line;
    ASSIGN_OR_RETURN(const std::string name, tokens_.ExpectName());
    if (name == "if") return ParseIf();
    if (name == "for") return ParseFor();
    if (name == "set") return ParseSet();
    if (name == "macro") return ParseMacro();
    if (name == "filter") return ParseFilter();
    if (name == "generation") return ParseGeneration();
    if (name == "break" || name == "continue") {
      Statement statement =
          Make(name == "break" ? StatementKind::kBreak : StatementKind::kContinue);
      if (num_loops_ == 0) return TemplateError(line, absl::StrCat(name, " outside of a loop"));
      RETURN_IF_ERROR(EndBlock());
      return statement;
    }
    return TemplateError(line, absl::StrCat("{% ", Quoted(name), " %} is not supported here"));
  }

  // After "if" or "elif".
  absl::StatusOr<Statement> ParseIf() {
    Statement statement = Make(StatementKind::kIf);
    ASSIGN_OR_RETURN(statement.expression, tokens_.ParseTuple());
    RETURN_IF_ERROR(EndBlock());
    ASSIGN_OR_RETURN(statement.body, ParseBody({"elif", "else", "endif"}));
    if (tokens_.SkipName("elif")) {
      if (++depth_ > kMaxBlockDepth) return TemplateError(statement.line, "too many elif");
      const absl::Cleanup leave = [this] { --depth_; };
      ASSIGN_OR_RETURN(Statement other, ParseIf());
      statement.otherwise.push_back(std::move(other));
      return statement;
    }
    if (tokens_.SkipName("else")) {
      RETURN_IF_ERROR(EndBlock());
      ASSIGN_OR_RETURN(statement.otherwise, ParseBody({"endif"}));
    }
    RETURN_IF_ERROR(EndBlock("endif"));
    return statement;
  }

  absl::StatusOr<Statement> ParseFor() {
    Statement statement = Make(StatementKind::kFor);
    RETURN_IF_ERROR(ParseTargets(statement));
    if (!tokens_.SkipName("in")) return tokens_.Unexpected();
    ASSIGN_OR_RETURN(statement.expression, tokens_.ParseWithoutConditional());
    if (tokens_.IsOperator(",")) return tokens_.Unexpected();
    if (tokens_.SkipName("if")) {
      ASSIGN_OR_RETURN(statement.condition, tokens_.ParseExpression());
    }
    RETURN_IF_ERROR(EndBlock());
    ++num_loops_;
    ASSIGN_OR_RETURN(statement.body, ParseBody({"else", "endfor"}));
    --num_loops_;
    if (tokens_.SkipName("else")) {
      RETURN_IF_ERROR(EndBlock());
      ASSIGN_OR_RETURN(statement.otherwise, ParseBody({"endfor"}));
    }
    RETURN_IF_ERROR(EndBlock("endfor"));
    return statement;
  }

  // "a", "a, b" or "(a, b)"
  absl::Status ParseTargets(Statement& statement) {
    const bool in_parentheses = tokens_.SkipOperator("(");
    do {
      if (tokens_.now().kind != TokenKind::kName) break;  // after a last comma
      statement.targets.push_back(tokens_.Take().text);
    } while (tokens_.SkipOperator(","));
    if (statement.targets.empty()) return tokens_.Unexpected();
    return in_parentheses ? tokens_.ExpectOperator(")") : absl::OkStatus();
  }

  absl::StatusOr<Statement> ParseSet() {
    Statement statement = Make(StatementKind::kSet);
    RETURN_IF_ERROR(ParseTargets(statement));
    if (statement.targets.size() == 1 && tokens_.SkipOperator(".")) {
      ASSIGN_OR_RETURN(statement.attribute, tokens_.ExpectName());
    }
    if (tokens_.SkipOperator("=")) {
      ASSIGN_OR_RETURN(statement.expression, tokens_.ParseTuple());
      RETURN_IF_ERROR(EndBlock());
      return statement;
    }
    if (statement.targets.size() > 1 || !statement.attribute.empty()) return tokens_.Unexpected();
    statement.kind = StatementKind::kSetBlock;
    RETURN_IF_ERROR(EndBlock());
    ASSIGN_OR_RETURN(statement.body, ParseBody({"endset"}));
    RETURN_IF_ERROR(EndBlock("endset"));
    return statement;
  }

  absl::StatusOr<Statement> ParseMacro() {
    Statement statement = Make(StatementKind::kMacro);
    ASSIGN_OR_RETURN(statement.name, tokens_.ExpectName());
    RETURN_IF_ERROR(tokens_.ExpectOperator("("));
    while (!tokens_.SkipOperator(")")) {
      if (!statement.parameters.empty()) RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      Parameter parameter;
      ASSIGN_OR_RETURN(parameter.name, tokens_.ExpectName());
      if (tokens_.SkipOperator("=")) {
        ASSIGN_OR_RETURN(parameter.otherwise, tokens_.ParseExpression());
      }
      statement.parameters.push_back(std::move(parameter));
    }
    RETURN_IF_ERROR(EndBlock());
    const int num_loops = std::exchange(num_loops_, 0);
    ASSIGN_OR_RETURN(statement.body, ParseBody({"endmacro"}));
    num_loops_ = num_loops;
    RETURN_IF_ERROR(EndBlock("endmacro"));
    return statement;
  }

  absl::StatusOr<Statement> ParseFilter() {
    Statement statement = Make(StatementKind::kFilter);
    ASSIGN_OR_RETURN(statement.expression, tokens_.ParseFilterOf(kFiltered));
    RETURN_IF_ERROR(EndBlock());
    ASSIGN_OR_RETURN(statement.body, ParseBody({"endfilter"}));
    RETURN_IF_ERROR(EndBlock("endfilter"));
    return statement;
  }

  // What the assistant said, which transformers marks for training.
  absl::StatusOr<Statement> ParseGeneration() {
    Statement statement = Make(StatementKind::kBlock);
    RETURN_IF_ERROR(EndBlock());
    ASSIGN_OR_RETURN(statement.body, ParseBody({"endgeneration"}));
    RETURN_IF_ERROR(EndBlock("endgeneration"));
    return statement;
  }

  ExpressionParser tokens_;
  int depth_ = 0;
  int num_loops_ = 0;
};

}  // namespace

absl::StatusOr<Body> ParseTemplate(std::string_view source) {
  ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace lockstep::jinja
