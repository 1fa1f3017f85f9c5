// What a schema consists of, with its $refs and allOf expanded.
//
// Pure functions, any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "model/grammar/schema_document.h"
#include "model/grammar/schema_rules.h"

namespace lockstep::grammar {

// anyOf or oneOf of a schema.
struct Alternatives {
  const SchemaJson* schema = nullptr;
  bool is_one_of = false;
  bool operator==(const Alternatives&) const = default;

  const SchemaJson& list() const { return (*schema)[is_one_of ? "oneOf" : "anyOf"]; }
};

struct SchemaParts {
  SchemaSet rules;                         // with rules of their own, all of which hold
  std::vector<Alternatives> alternatives;  // one of each holds
  bool has_reference = false;              // a $ref was met
  // Need not be expanded again.
  absl::flat_hash_set<const SchemaJson*> expanded;
  // One of their alternatives was added. They must not be met in it.
  absl::flat_hash_set<const SchemaJson*> chosen;

  // What it takes to copy them.
  int64_t size() const {
    return static_cast<int64_t>(rules.size() + alternatives.size() + chosen.size());
  }
  // Without anything: any value is valid.
  bool is_free() const { return rules.empty() && alternatives.empty(); }
  // What remains when one of these alternatives, which are among them, is to be added.
  SchemaParts Without(const Alternatives& chosen_ones) const;
};

// Adds a schema to those that must hold. INVALID_ARGUMENT: it is malformed, refers to itself
// before anything is read, or through too many others.
absl::Status ExpandSchema(const SchemaJson& schema, const SchemaDocument& document,
                          SchemaWork& work, SchemaParts& parts);

}  // namespace lockstep::grammar
