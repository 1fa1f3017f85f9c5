#include "model/grammar/schema_compiler.h"

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/grammar/schema_exclusion.h"

namespace lockstep::grammar {
namespace {

// Of schemas in each other, counted along $refs too: each takes some kilobytes of the stack.
constexpr int kMaxSchemaDepth = 100;

}  // namespace

absl::StatusOr<GrammarBuilder::Part> SchemaCompiler::CompileAll(const SchemaSet& schemas) {
  SchemaParts parts;
  for (const SchemaJson* schema : schemas) {
    RETURN_IF_ERROR(ExpandSchema(*schema, document_, work_, parts));
  }
  return CompileParts(parts);
}

absl::StatusOr<GrammarBuilder::Part> SchemaCompiler::CompileParts(const SchemaParts& parts) {
  if (parts.is_free()) return text_.value();
  PartsKey key = {parts.rules, {}};
  for (const Alternatives& each : parts.alternatives) {
    key.second.emplace_back(each.schema, each.is_one_of);
  }
  if (const auto known = rules_.find(key); known != rules_.end()) {
    return builder_.Call(known->second);
  }
  // The outermost is what "#" refers to.
  if (!parts.has_reference && depth_ > 0) return CompileBody(parts);
  const GrammarBuilder::Rule rule = builder_.Declare();
  rules_.emplace(std::move(key), rule);
  ASSIGN_OR_RETURN(const Part body, CompileBody(parts));
  builder_.Define(rule, body);
  return builder_.Call(rule);
}

absl::StatusOr<GrammarBuilder::Part> SchemaCompiler::CompileBody(const SchemaParts& parts) {
  if (depth_ == kMaxSchemaDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat("schemas lie in each other more than ", kMaxSchemaDepth, " deep"));
  }
  ++depth_;
  const absl::Cleanup leave = [this] { --depth_; };
  RETURN_IF_ERROR(work_.Take(1));
  if (builder_.is_full()) return absl::InvalidArgumentError("the schema has too many parts");
  if (!parts.alternatives.empty()) return CompileAlternatives(parts);
  ASSIGN_OR_RETURN(const ValueRules rules, ReadRules(parts.rules, document_, work_));
  return CompileRules(rules);
}

// Those of the first schema that has some, each together with all else that must hold.
absl::StatusOr<GrammarBuilder::Part> SchemaCompiler::CompileAlternatives(const SchemaParts& parts) {
  const Alternatives alternatives = parts.alternatives.front();
  const SchemaParts others = parts.Without(alternatives);
  std::vector<SchemaParts> each;
  for (const SchemaJson& schema : alternatives.list()) {
    RETURN_IF_ERROR(work_.Take(1 + others.size()));
    each.push_back(others);
    RETURN_IF_ERROR(ExpandSchema(schema, document_, work_, each.back()));
  }
  if (alternatives.is_one_of) {
    RETURN_IF_ERROR(CheckExclusive(*alternatives.schema, each, document_, work_));
  }
  std::vector<Part> choices;
  for (const SchemaParts& choice : each) {
    ASSIGN_OR_RETURN(choices.emplace_back(), CompileParts(choice));
  }
  return builder_.Choice(std::move(choices));
}

}  // namespace lockstep::grammar
