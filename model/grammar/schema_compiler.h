// From a JSON Schema to a grammar of the texts that are valid against it. See json_schema.h.
//
// All texts are valid; not all valid texts are written: properties have one order, names that no
// schema mentions are left out where others are mentioned, and numbers and counts have limits.
// What a $ref refers to is one rule, so schemas that refer to themselves end. Used by one thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/grammar/grammar.h"
#include "model/grammar/json_numbers.h"
#include "model/grammar/json_text.h"
#include "model/grammar/schema_document.h"
#include "model/grammar/schema_expansion.h"
#include "model/grammar/schema_rules.h"

namespace lockstep::grammar {

// What all schemas of a grammar have in common.
struct SchemaCommons {
  explicit SchemaCommons(GrammarBuilder& builder)
      : builder(builder), text(builder), numbers(builder) {}

  GrammarBuilder& builder;
  JsonText text;
  JsonNumbers numbers;
  SchemaWork work;
  std::map<std::string, GrammarBuilder::Part> patterns;  // with what they are counted to
};

class SchemaCompiler {
 public:
  using Part = GrammarBuilder::Part;

  // Both must outlive it.
  SchemaCompiler(const SchemaDocument& document, SchemaCommons& commons)
      : document_(document),
        commons_(commons),
        builder_(commons.builder),
        text_(commons.text),
        work_(commons.work) {}

  absl::StatusOr<Part> Compile() { return CompileAll({&document_.root()}); }

 private:
  // Alternatives are told apart from the schema that has them.
  using PartsKey = std::pair<SchemaSet, std::vector<std::pair<const SchemaJson*, bool>>>;

  // Texts that are valid against all of them.
  absl::StatusOr<Part> CompileAll(const SchemaSet& schemas);
  absl::StatusOr<Part> CompileParts(const SchemaParts& parts);
  absl::StatusOr<Part> CompileBody(const SchemaParts& parts);
  absl::StatusOr<Part> CompileAlternatives(const SchemaParts& parts);

  absl::StatusOr<Part> CompileRules(const ValueRules& rules);
  absl::StatusOr<Part> CompileValues(const ValueRules& rules);
  absl::StatusOr<Part> CompileString(const StringRules& rules);
  absl::StatusOr<Part> CompilePattern(const StringRules& rules);
  absl::StatusOr<Part> CompileArray(const ArrayRules& rules);
  absl::StatusOr<Part> CompileObject(const ObjectRules& rules);
  // Of other names or items; nullopt: there are none.
  absl::StatusOr<std::optional<Part>> CompileOthers(const std::optional<SchemaSet>& schemas,
                                                    bool are_default);
  absl::Status LimitProperties(const ObjectRules& rules, JsonText::Object& object) const;

  const SchemaDocument& document_;
  SchemaCommons& commons_;
  GrammarBuilder& builder_;
  JsonText& text_;
  SchemaWork& work_;
  int depth_ = 0;
  std::map<PartsKey, GrammarBuilder::Rule> rules_;
};

}  // namespace lockstep::grammar
