#include "model/grammar/json_schema.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "model/grammar/schema_compiler.h"
#include "model/grammar/schema_document.h"
#include "model/json/strict_json.h"

namespace lockstep::grammar {
namespace {

constexpr int kMaxSchemaJsonDepth = 64;

}  // namespace

JsonSchemas::JsonSchemas(GrammarBuilder& builder)
    : commons_(std::make_unique<SchemaCommons>(builder)) {}
JsonSchemas::~JsonSchemas() = default;

JsonText& JsonSchemas::text() { return commons_->text; }

absl::StatusOr<GrammarBuilder::Part> JsonSchemas::Add(std::string_view schema) {
  ASSIGN_OR_RETURN(SchemaJson root, ParseStrictOrderedJson(schema, kMaxSchemaJsonDepth));
  const SchemaDocument document(std::move(root));
  return SchemaCompiler(document, *commons_).Compile();
}

absl::StatusOr<GrammarBuilder::Part> AddJsonSchema(std::string_view schema,
                                                   GrammarBuilder& builder) {
  return JsonSchemas(builder).Add(schema);
}

}  // namespace lockstep::grammar
