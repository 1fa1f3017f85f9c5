// The keywords of one schema, checked as they are read; and the rules of each kind of value.
//
// Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/grammar/schema_document.h"
#include "model/grammar/schema_rules.h"

namespace lockstep::grammar {

class SchemaKeywords {
 public:
  // schema is an object.
  SchemaKeywords(const SchemaJson& schema, const SchemaDocument& document)
      : schema_(schema), document_(document) {}

  const SchemaJson& schema() const { return schema_; }
  const SchemaJson* Find(const char* keyword) const { return FindKeyword(schema_, keyword); }

  // nullopt, null: it is not there. INVALID_ARGUMENT: it is something else.
  absl::StatusOr<std::optional<int64_t>> Count(const char* keyword) const;
  absl::StatusOr<const SchemaJson*> Number(const char* keyword) const;
  absl::StatusOr<const SchemaJson*> Array(const char* keyword) const;
  absl::StatusOr<const SchemaJson*> Object(const char* keyword) const;
  absl::StatusOr<std::optional<std::string>> Text(const char* keyword) const;
  absl::StatusOr<bool> Flag(const char* keyword) const;  // false: it is not there

  absl::Status Error(absl::string_view what) const { return document_.Error(schema_, what); }
  absl::Status NotSupported(absl::string_view keyword) const;

  // What it says of its object's or array's parts that no other keyword is about. It stands for
  // `instead`, which sees more, unless there are keywords that it alone sees into.
  absl::StatusOr<const SchemaJson*> Unevaluated(const char* keyword, const char* instead) const;

 private:
  absl::StatusOr<const SchemaJson*> OfKind(const char* keyword, bool (SchemaJson::*is)() const,
                                           const char* kind) const;

  const SchemaJson& schema_;
  const SchemaDocument& document_;
};

// These add one schema's rules to those of others.
absl::Status AddNumberRules(const SchemaKeywords& keywords, NumberRange& range);
absl::Status AddStringRules(const SchemaKeywords& keywords, StringRules& rules);
absl::Status AddArrayRules(const SchemaKeywords& keywords, ArrayRules& rules);
absl::Status AddObjectRules(const SchemaKeywords& keywords, SchemaWork& work, ObjectRules& rules);
// When all are added: what is required without being named is a property too.
void FinishObjectRules(ObjectRules& rules);

}  // namespace lockstep::grammar
