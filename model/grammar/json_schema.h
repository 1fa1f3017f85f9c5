// JSON Schema (draft 2020-12, and what drafts 4 to 7 wrote otherwise) as a grammar of the JSON
// texts that are valid against it.
//
// Pure functions, any thread.
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "model/grammar/grammar.h"

namespace lockstep::grammar {

class JsonText;
struct SchemaCommons;

// Several schemas of one grammar, which share what is alike in all JSON, and the work that they may
// take together. Used by one thread.
class JsonSchemas {
 public:
  // The builder must outlive it.
  explicit JsonSchemas(GrammarBuilder& builder);
  ~JsonSchemas();

  // As AddJsonSchema.
  absl::StatusOr<GrammarBuilder::Part> Add(std::string_view schema);
  // For what stands around them.
  JsonText& text();

 private:
  const std::unique_ptr<SchemaCommons> commons_;
};

// INVALID_ARGUMENT: schema is not strict JSON, is malformed, or has a keyword that is not
// supported, which is named with its place ("#/properties/age").
absl::StatusOr<GrammarBuilder::Part> AddJsonSchema(std::string_view schema,
                                                   GrammarBuilder& builder);

}  // namespace lockstep::grammar
