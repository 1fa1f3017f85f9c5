#include "model/grammar/constraint.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/grammar/json_schema.h"
#include "model/grammar/regex.h"
#include "model/grammar/thought.h"
#include "model/grammar/tool_calls.h"
#include "model/json/strict_json.h"

namespace lockstep::grammar {
namespace {

absl::StatusOr<GrammarBuilder::Part> AddChoices(std::string_view text, GrammarBuilder& builder) {
  ASSIGN_OR_RETURN(const nlohmann::json choices, ParseStrictJson(text));
  if (!choices.is_array() || choices.empty()) {
    return absl::InvalidArgumentError("must be at least one text");
  }
  std::vector<std::string> texts;
  for (const nlohmann::json& choice : choices) {
    if (!choice.is_string() || choice.get_ref<const std::string&>().empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("holds ", QuotedJson(choice), ", must be texts that are not empty"));
    }
    texts.push_back(choice.get<std::string>());
  }
  return builder.OneOf(std::move(texts));
}

absl::StatusOr<GrammarBuilder::Part> AddKind(const OutputConstraint& constraint,
                                             GrammarBuilder& builder) {
  switch (constraint.kind) {
    case OutputConstraint::Kind::kJsonSchema:
      return AddJsonSchema(constraint.text, builder);
    case OutputConstraint::Kind::kRegex:
      return AddRegex(constraint.text, builder);
    case OutputConstraint::Kind::kChoices:
      return AddChoices(constraint.text, builder);
    case OutputConstraint::Kind::kToolCalls: {
      ASSIGN_OR_RETURN(const ToolCalls calls, ParseToolCalls(constraint.text));
      return AddToolCalls(calls, constraint.thought == OutputConstraint::Thought::kAllowed,
                          builder);
    }
    case OutputConstraint::Kind::kNone:
      break;
  }
  return absl::InvalidArgumentError("there is no constraint");
}

}  // namespace

absl::StatusOr<Grammar> CompileConstraint(const OutputConstraint& constraint) {
  using Thought = OutputConstraint::Thought;
  if (constraint.text.size() > OutputConstraint::kMaxTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "has ", constraint.text.size(), " bytes, at most ", OutputConstraint::kMaxTextBytes));
  }
  GrammarBuilder builder;
  std::vector<GrammarBuilder::Part> parts;
  if (constraint.thought != Thought::kNone) {
    parts.push_back(AddThought(constraint.thought == Thought::kBegun, builder));
  }
  ASSIGN_OR_RETURN(parts.emplace_back(), AddKind(constraint, builder));
  return builder.Build(builder.Sequence(std::move(parts)));
}

}  // namespace lockstep::grammar
